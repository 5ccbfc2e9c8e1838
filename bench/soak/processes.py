"""The long-lived processes of a soak: each is restarted when it has ended, and each can be killed, paused or skewed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.soak.environment import Environment


@dataclass(slots=True)
class Member:
    """One supervised slot, and the process that fills it now."""

    name: str
    role: str  # run, serve or read
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    offset: str | None = None  # the clock of its next process, such as +2d
    paused: bool = False
    files: list[Path] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_warm(self) -> bool:
        """Whether the process has finished something since it was started."""
        if not self.is_alive or self.paused:
            return False
        progress, log = self.files[-2:]
        if self.role == "serve":
            return b'"event":"round.finished"' in log.read_bytes()
        return progress.exists() and progress.stat().st_size > 0


class Supervisor:
    """Starts the processes and keeps them alive until the end."""

    def __init__(self, env: Environment, seed: int, processes: int, readers: int) -> None:
        self._env = env
        self._seed = seed
        self._lock = threading.RLock()
        self._closing = False
        roles = ["serve" if number % 2 else "run" for number in range(processes)] + ["read"] * readers
        self.members = [Member(f"{role}-{number}", role) for number, role in enumerate(roles)]

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members if member.role != "read"]

    def start_missing(self) -> None:
        with self._lock:
            for member in self.members:
                if not self._closing and not member.is_alive:
                    self._end(member, signal.SIGKILL)  # child processes, such as a JVM
                    self._start(member)

    def _start(self, member: Member) -> None:
        member.starts += 1
        stem = self._env.scratch / f"{member.name}-{member.starts}"
        progress, log = stem.with_suffix(".jsonl"), stem.with_suffix(".log")
        member.files += [progress, log]
        variables = self._env.skewed(member.offset) if member.offset else {}
        if member.role == "serve":
            command = [
                sys.executable,
                "-m",
                "bench.soak.command",
                "control",
                "serve",
                "--workspace",
                str(self._env.folder),
            ]
        else:
            seed = str(random.Random(f"{self._seed}/{member.name}/{member.starts}").randrange(2**32))
            command = [
                sys.executable, "-m", "bench.soak.worker", member.role, str(self._env.folder), str(progress), seed
            ]  # fmt: skip
        with log.open("ab") as output:
            member.process = subprocess.Popen(
                command,
                env=self._env.environ(**variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        member.paused = False

    def kill(self, member: Member, *, group: bool) -> None:
        """SIGKILL the process, or it with everything that it started."""
        with self._lock:
            if member.is_alive and member.process is not None:
                if group:
                    self._end(member, signal.SIGKILL)
                else:
                    member.process.kill()
                member.process.wait()

    def send(self, member: Member, number: signal.Signals) -> int | None:
        """Send a signal to the process alone; its id, or None if it has ended."""
        with self._lock:
            if not member.is_alive or member.process is None:
                return None
            member.process.send_signal(number)
            member.paused = number == signal.SIGSTOP
            return member.process.pid

    def stop(self) -> None:
        """End all processes: the loops are asked first, then all process groups are killed."""
        with self._lock:
            self._closing = True
            for member in self.members:
                if member.is_alive and member.process is not None:
                    member.process.send_signal(signal.SIGCONT)
                    member.process.send_signal(signal.SIGTERM if member.role == "serve" else signal.SIGKILL)
            for member in self.members:
                if member.process is not None:
                    with suppress(subprocess.TimeoutExpired):
                        member.process.wait(45)
                    self._end(member, signal.SIGKILL)
                    member.process.wait()

    def restart_all(self) -> None:
        with self._lock:
            self._closing = False
            self.start_missing()

    def _end(self, member: Member, number: signal.Signals) -> None:
        if member.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(member.process.pid, number)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The records of every process, without a line that a kill cut off."""
        for member in self.members:
            for path in member.files:
                if path.suffix == ".jsonl" and path.exists():
                    for line in path.read_text().splitlines():
                        with suppress(ValueError):
                            yield json.loads(line)

    def logged_tracebacks(self) -> Iterator[str]:
        for member in self.members:
            for path in member.files:
                if path.suffix == ".log" and path.exists():
                    text = path.read_text(errors="replace")
                    if "Traceback (most recent call last)" in text and member.role == "serve":
                        yield f"{path.name}: ...{text[text.rindex('Traceback (most recent call last)') :][-6000:]}"

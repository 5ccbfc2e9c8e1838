"""The faults of a soak. Each ends by itself: the main loop processes a list of faults to be undone later."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psycopg

from bench.soak.environment import Environment
from bench.soak.plan import FAULTS, Action
from bench.soak.processes import Member, Supervisor
from bench.soak.report import Report
from penstock.db.lease import LEASE_SECONDS

_OFFSETS = ("+2d", "-3h", "+90s", "-90s")


class Faults:
    def __init__(self, env: Environment, supervisor: Supervisor, report: Report, *, long: bool) -> None:
        self._env = env
        self._supervisor = supervisor
        self._report = report
        self._long = long  # whether there is time to wait for a lease to end
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._threads: list[threading.Thread] = []
        self._condemned: list[tuple[Member, bool]] = []  # to be killed, some of them with their group
        self._kinds: dict[str, Callable[[random.Random], str | None]] = {
            "kill_driver": lambda chance: self._kill(chance, group=False),
            "kill_process_group": lambda chance: self._kill(chance, group=True),
            "pause_past_the_lease": self._pause,
            "database_outage": self._database_outage,
            "disk_full": self._disk_full,
            "storage_errors": self._storage_errors,
            "clock_skew": self._clock_skew,
        }
        assert self._kinds.keys() == FAULTS.keys()

    def inject(self, action: Action) -> None:
        """Inject a fault and count it. A kind returns None, or why it is not possible here; or "" if it comes later."""
        why_not = self._kinds[action.kind](random.Random(action.chance))
        if why_not is None:
            self._report.fault(action.kind)
        elif why_not:
            self._report.skip(action.kind, why_not)

    def undo_what_is_over(self, *, everything: bool = False) -> None:
        due = [item for item in self._later if everything or item[0] <= time.monotonic()]
        for item in due:
            self._later.remove(item)
            item[1]()
        for member, group in [*self._condemned]:
            if member.is_warm and not everything:
                self._condemned.remove((member, group))
                self._supervisor.kill(member, group=group)
                self._report.fault("kill_process_group" if group else "kill_driver")
        if everything:
            self._condemned.clear()
            for thread in self._threads:
                thread.join()

    def _after(self, seconds: float, undo: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, undo))

    def _in_background(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]

    def _kill(self, chance: random.Random, *, group: bool) -> str | None:
        """Kill an active process. A process that is starting is mostly killed as soon as it is active."""
        member = chance.choice(self._supervisor.members if group else self._supervisor.workers)
        if not member.is_warm and chance.random() < 0.7:
            self._condemned.append((member, group))
            return ""
        self._supervisor.kill(member, group=group)
        return None

    def _pause(self, chance: random.Random) -> str | None:
        """Stop a worker until others take over its work, then let it go on. Waiting for the end of a lease takes a
        minute; in a short soak its heartbeat is set back instead."""
        member, really = chance.choice(self._supervisor.workers), self._long and chance.random() < 0.5
        seconds = LEASE_SECONDS + 5 if really else chance.uniform(4, 10)
        pid = self._supervisor.send(member, signal.SIGSTOP)
        if pid is not None and not really:
            self._set_heartbeat_back(pid)

        def go_on() -> None:
            self._supervisor.send(member, signal.SIGCONT)

        self._after(seconds, go_on)
        return None

    def _set_heartbeat_back(self, pid: int) -> None:
        env, mine = self._env, f"{pid}:%"
        with suppress(sqlite3.Error, psycopg.Error):  # the paused process may hold the database itself
            if env.schema is None:
                with closing(sqlite3.connect(env.folder / "state.db", timeout=1)) as connection, connection:
                    past = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-120 seconds')"
                    statement = f"UPDATE worker SET heartbeat_at = {past} WHERE process LIKE ?"  # noqa: S608 - our own
                    connection.execute(statement, [mine])
            else:
                with psycopg.connect(env.state.replace("+psycopg", "", 1), autocommit=True) as pg:
                    pg.execute("SELECT set_config('search_path', %s, false)", [env.schema])
                    pg.execute(
                        "UPDATE worker SET heartbeat_at = clock_timestamp() - interval '120 seconds'"
                        " WHERE process LIKE %s",
                        [mine],
                    )

    def _database_outage(self, chance: random.Random) -> str | None:
        """Restart PostgreSQL, or lock SQLite for some time."""
        if self._env.restart_database is not None:
            self._in_background(self._env.restart_database)
            return None
        seconds = chance.uniform(1, 8)

        def hold() -> None:
            path = self._env.folder / "state.db"
            with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                time.sleep(seconds)
                connection.execute("ROLLBACK")

        self._in_background(hold)
        return None

    def _disk_full(self, chance: random.Random) -> str | None:
        if not self._env.small_disk:
            return "needs root, to mount a small file system"
        if self._env.schema is not None and self._env.s3_endpoint is not None:
            return "neither the database nor the lake is on the local disk"
        filler = self._env.folder / "filler"
        _fill(filler)
        self._after(chance.uniform(2, 8), lambda: filler.unlink(missing_ok=True))
        return None

    def _storage_errors(self, chance: random.Random) -> str | None:
        if self._env.s3_endpoint is None:
            return "the lake is a local folder"
        self._env.inject_storage_faults(chance.uniform(0.05, 0.3), chance.uniform(0.0, 0.5))
        self._after(chance.uniform(3, 10), lambda: self._env.inject_storage_faults(0.0, 0.0))
        return None

    def _clock_skew(self, chance: random.Random) -> str | None:
        """A worker is replaced by one whose clock is wrong; after a while its place gets the right clock back."""
        if self._env.fake_clock is None:
            return "libfaketime is not installed (Debian: apt-get install libfaketime)"
        member = chance.choice(self._supervisor.workers)
        member.offset = chance.choice(_OFFSETS)
        self._supervisor.kill(member, group=True)

        def right_again() -> None:
            member.offset = None
            self._supervisor.kill(member, group=True)

        self._after(chance.uniform(20, 40), right_again)
        return None


def _fill(path: Path) -> None:
    """Take all the space that is left."""
    block = b"\0" * (1 << 20)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while block:
            try:
                os.write(descriptor, block)
            except OSError:
                block = block[: len(block) // 2]
    finally:
        os.close(descriptor)

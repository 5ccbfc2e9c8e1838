"""Workers: one row per process with a heartbeat by the database's clock, and the open attempts of dead workers."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import LEASE_SECONDS, seconds_ago
from penstock.partition import AttemptKey, PartitionKey, RunId, new_ulid

HEARTBEAT_SECONDS = 15


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An open attempt and the worker that holds it."""

    attempt: AttemptKey
    worker_token: str
    lost_count: int


class WorkerStore:
    """Registers this process, and finds the attempts of dead processes."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def register(self, *, control_loop: bool = False) -> str:
        """Return a new token for this process. Attempts store it, and verdicts must carry it. A `control_loop` executes
        orders."""
        token = new_ulid()
        row: dict[str, Any] = {
            "token": token,
            "host": socket.gethostname(),
            "machine": machine(),
            "process": process(os.getpid()) or f"{os.getpid()}:unknown",
            "is_control_loop": control_loop,
        }
        columns: dict[str, Any] = {name: sa.bindparam(name) for name in row}
        statement = sa.insert(schema.worker).values(**columns, started_at=self._now(), heartbeat_at=self._now())
        self._database.transact(lambda connection: connection.execute(statement, row))
        return token

    def heartbeat(self, token: str) -> None:
        """Renew the leases of everything that this worker holds, with one update."""
        worker = schema.worker
        statement = sa.update(worker).where(worker.c.token == token).values(heartbeat_at=self._now())
        self._database.transact(lambda connection: connection.execute(statement))

    def record_round(self, token: str) -> None:
        """Record that a control loop finished a round: its heartbeat continues while a round hangs."""
        worker = schema.worker
        statement = sa.update(worker).where(worker.c.token == token).values(round_at=self._now())
        self._database.transact(lambda connection: connection.execute(statement))

    def stop(self, token: str) -> None:
        worker = schema.worker
        statement = sa.update(worker).where(worker.c.token == token).values(stopped_at=self._now())
        self._database.transact(lambda connection: connection.execute(statement))

    def mark_dead_workers(self) -> int:
        """Mark workers whose process on this machine is dead as stopped, without waiting for their lease to end."""
        worker = schema.worker
        with self._database.snapshot() as connection:
            alive = connection.execute(sa.select(worker).where(worker.c.stopped_at.is_(None))).all()
        dead = [row.token for row in alive if _is_dead(row)]
        for token in dead:
            self.stop(token)
        return len(dead)

    def abandoned(self) -> list[OpenAttempt]:
        """Open attempts of workers that stopped or whose lease ran out."""
        return self._open(schema.partition_attempt.c.worker_token.in_(self._gone()))

    def open_attempts_of(self, token: str) -> list[OpenAttempt]:
        """Open attempts of one worker."""
        return self._open(schema.partition_attempt.c.worker_token == token)

    def abandoned_in(self, run_id: RunId) -> list[OpenAttempt]:
        """Open attempts of one run whose worker is gone."""
        attempt = schema.partition_attempt
        return self._open(sa.and_(attempt.c.run_id == run_id, attempt.c.worker_token.in_(self._gone())))

    def _open(self, condition: sa.ColumnElement[bool]) -> list[OpenAttempt]:
        attempt = schema.partition_attempt
        with self._database.snapshot() as connection:
            rows = connection.execute(sa.select(attempt).where(attempt.c.outcome.is_(None), condition)).all()
        return [
            OpenAttempt(
                AttemptKey(PartitionKey(r.source, r.customer_id, r.query_name, r.logical_date), RunId(r.run_id)),
                r.worker_token,
                r.lost_count,
            )
            for r in rows
        ]

    def abandoned_runs(self) -> list[tuple[RunId, str]]:
        """Unfinished runs whose workers are gone, with the tokens of those workers."""
        return self._unfinished(schema.run.c.worker_token.in_(self._gone()))

    def runs_of(self, token: str) -> list[tuple[RunId, str]]:
        """Unfinished runs of one worker."""
        return self._unfinished(schema.run.c.worker_token == token)

    def _unfinished(self, condition: sa.ColumnElement[bool]) -> list[tuple[RunId, str]]:
        run = schema.run
        with self._database.snapshot() as connection:
            rows = connection.execute(
                sa.select(run.c.run_id, run.c.worker_token).where(run.c.finished_at.is_(None), condition)
            )
            return [(RunId(row.run_id), row.worker_token) for row in rows]

    def _gone(self) -> sa.Select[tuple[str]]:
        worker = schema.worker
        return sa.select(worker.c.token).where(
            sa.or_(
                worker.c.stopped_at.is_not(None),
                worker.c.heartbeat_at < seconds_ago(self._database.dialect, LEASE_SECONDS),
            )
        )

    def _now(self) -> sa.ColumnElement[Any]:
        return seconds_ago(self._database.dialect, 0)


def machine() -> str:
    """Identify this boot of this machine and this PID namespace: a process id is valid only inside it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown/{new_ulid()}"


def process(pid: int) -> str | None:
    """A process of this machine with its start time, so that a reused process id is not mistaken; None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else f"{pid}:{fields[19]}"


def _is_dead(row: Any) -> bool:
    if row.machine != machine() or row.process.endswith(":unknown"):
        return False
    return bool(process(int(row.process.partition(":")[0])) != row.process)

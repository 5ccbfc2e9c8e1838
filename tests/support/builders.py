"""Defaults for tests about state: a test sets only the values that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

import sqlalchemy as sa

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.contract.contract import Contract
from penstock.control.pause import scopes_of
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import migrate
from penstock.errors import ErrorClass
from penstock.expected import ExpectedRange
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id, new_ulid
from penstock.state.control import AuditEntry, ControlStore
from penstock.state.pauses import PauseStore
from penstock.state.reader import StateReader
from penstock.state.records import Accepted, Cancelled, Issued, Planned, Refused, Rejected
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore

NOW = datetime(2024, 7, 1, 12, 0, tzinfo=UTC)
TENANT, WORKSPACE = "acme", "ads"
BACKENDS = ("sqlite", "postgresql")


class SetClock:
    """A clock that returns the time it was set to."""

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def key(
    day: int = 1, customer: str = "1000000001", query: str = "campaign_daily", source: str = "demo"
) -> PartitionKey:
    """A partition of June 2024."""
    return PartitionKey(source, customer, query, date(2024, 6, day))


def days(first: int, last: int, customer: str = "1000000001", query: str = "campaign_daily") -> ExpectedRange:
    return ExpectedRange("demo", customer, query, date(2024, 6, first), date(2024, 6, last))


def query(name: str = "campaign_daily", **changes: Any) -> Query:
    fields = (Field(name="campaign_id", type="long"), Field(name="clicks", type="long"))
    return Query(**{"name": name, "source": "demo", "start_date": date(2024, 6, 1), "fields": fields, **changes})


def contract(**changes: Any) -> Contract:
    return Contract.of(query(**changes))


FINGERPRINT = contract().fingerprint


def planned(partition: PartitionKey | None = None, seen: int = 0, reason: str = "missing") -> Planned:
    return Planned(partition or key(), seen, AttemptReason(reason), FINGERPRINT, "v1")


def due_at(partition: PartitionKey) -> datetime:
    """When the day was over, for an account that lives by UTC."""
    return datetime.combine(partition.logical_date, time.min, UTC) + timedelta(days=1)


def accepted(attempt: AttemptKey, token: str, rows: int = 10) -> Accepted:
    return Accepted(attempt, token, "v1", rows, f"sha-{attempt.run_id}", 20 * rows, f"content-{attempt.run_id}")


def rejected(
    attempt: AttemptKey, token: str, message: str = "clicks is negative", stage: Stage = Stage.VALIDATE, **changes: Any
) -> Rejected:
    return Rejected(attempt, token, stage, ErrorClass.DATA, message, **changes)


def cancelled(attempt: AttemptKey, token: str, *, lost: bool = False) -> Cancelled:
    return Cancelled(attempt, token, Stage.EXTRACT, ErrorClass.QUOTA, "the source asks for a pause", lost)


def audit_entry(**changes: Any) -> AuditEntry:
    return AuditEntry(**{"actor": "ada", "command": "state retry", "filters": {}, "flags": {}, **changes})


def quick_folder() -> AbstractContextManager[str]:
    """A folder in memory if the system has one: these tests are not about the durability of disks."""
    memory = Path("/dev/shm")
    return TemporaryDirectory(prefix="penstock-", dir=memory if memory.is_dir() else None)


def open_database(backend: str, folder: str | Path, postgres_url: Callable[[], str]) -> Database:
    """A new state schema, not migrated yet."""
    if backend == "sqlite":
        return Database(f"sqlite:///{folder}/state.db")
    return Database(postgres_url(), schema=f"t_{new_ulid().lower()}")


def another_handle(database: Database) -> Database:
    """The same state as another process would open it."""
    return Database(database.url.render_as_string(hide_password=False), database.schema)


def migrated(database: Database) -> Database:
    migrate(database, TENANT, WORKSPACE)
    return database


@dataclass(frozen=True, slots=True)
class Actors:
    """All actors on one state database, and one live worker."""

    database: Database
    clock: SetClock
    control: ControlStore
    validator: ValidatorStore
    workers: WorkerStore
    reader: StateReader
    token: str

    @classmethod
    def on(cls, database: Database) -> Actors:
        clock = SetClock()
        control, workers = ControlStore(database, clock), WorkerStore(database, clock)
        today = contract()
        control.store_contracts([(today.fingerprint, "demo", today.query_name, "v1", today.body())])
        validator, reader = ValidatorStore(database, clock), StateReader(database)
        return cls(database, clock, control, validator, workers, reader, workers.register())

    def plan(self, *keys: PartitionKey) -> list[Planned]:
        """The plan that a planner would make now."""
        return [planned(k, max((a.attempt_no for a in self.reader.attempts(k)), default=0)) for k in keys or (key(),)]

    def try_to_issue(
        self, *items: Planned, run_id: RunId | None = None, token: str | None = None
    ) -> tuple[list[Issued], list[Refused]]:
        return self.control.issue(run_id or new_run_id(), token or self.token, 1, items)

    def issue(self, *keys: PartitionKey, token: str | None = None) -> list[AttemptKey]:
        issued, refused = self.try_to_issue(*self.plan(*keys), token=token)
        assert not refused
        return [item.attempt for item in issued]

    def issue_one(self, partition: PartitionKey | None = None, token: str | None = None) -> AttemptKey:
        [attempt] = self.issue(partition or key(), token=token)
        return attempt

    def accept(self, partition: PartitionKey | None = None, rows: int = 10) -> AttemptKey:
        """Issue an attempt and accept it."""
        attempt = self.issue_one(partition)
        assert self.validator.judge([accepted(attempt, self.token, rows)]).applied == [attempt]
        return attempt

    def reject(self, partition: PartitionKey | None = None, message: str = "clicks is negative") -> AttemptKey:
        """Issue an attempt and reject it."""
        attempt = self.issue_one(partition)
        assert self.validator.judge([rejected(attempt, self.token, message)]).applied == [attempt]
        return attempt

    def cancel(self, partition: PartitionKey | None = None, *, lost: bool = False) -> AttemptKey:
        attempt = self.issue_one(partition)
        assert self.control.cancel([cancelled(attempt, self.token, lost=lost)]).applied == [attempt]
        return attempt

    def execute(self, statement: sa.Executable, **parameters: Any) -> None:
        self.database.transact(lambda connection: connection.execute(statement, parameters))

    def demote(self, partition: PartitionKey | None = None) -> None:
        """Apply the change that a demotion makes to the row."""
        table = schema.partition_state
        self.execute(
            sa.update(table)
            .where(*is_key(table, partition or key()))
            .values(status="failed", error_message="withdrawn", authority_version=table.c.authority_version + 1)
        )

    def publish(self, partition: PartitionKey | None = None) -> None:
        """A pointer to the authoritative run, as a publication leaves it."""
        partition = partition or key()
        state = self.reader.state(partition)
        assert state is not None
        table = f"{partition.asset}.v1"
        if table not in {row["table_name"] for row in self.rows(schema.warehouse_table)}:
            self.execute(
                sa.insert(schema.warehouse_table).values(
                    table_name=table,
                    source=partition.source,
                    query_name=partition.query_name,
                    schema_version="v1",
                    location="w/t",
                    version=1,
                )
            )
        self.execute(
            sa.insert(schema.warehouse_pointer).values(
                **columns(partition),
                run_id=state.current_run_id,
                schema_version="v1",
                table_name=table,
                table_version=1,
                available=True,
                record_count=10,
                loaded_at=NOW,
            )
        )

    def expire(self, token: str) -> None:
        """Set the worker's last heartbeat to two minutes ago, by the database's clock."""
        past = {
            "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-120 seconds')",
            "postgresql": "clock_timestamp() - interval '120 seconds'",
        }
        worker = schema.worker
        moment: sa.ColumnElement[Any] = sa.literal_column(past[self.database.dialect])
        self.execute(sa.update(worker).where(worker.c.token == token).values(heartbeat_at=moment))

    def rows(self, table: sa.Table) -> list[dict[str, Any]]:
        return sorted(everything(self.database, [table])[table.name], key=repr)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The payloads of one type of event with their run, in the order of the ledger."""
        event = schema.event
        with self.database.snapshot() as connection:
            found = connection.execute(sa.select(event).where(event.c.type == kind).order_by(event.c.position)).all()
        return [{"run_id": row.run_id, **row.payload} for row in found]


def columns(partition: PartitionKey) -> dict[str, Any]:
    return {name: getattr(partition, name) for name in schema.KEY}


def is_key(table: sa.Table, partition: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in columns(partition).items()]


def everything(database: Database, tables: Iterable[sa.Table] = ()) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, to compare before and after."""
    with database.snapshot() as connection:
        return {
            table.name: sorted((dict(row._mapping) for row in connection.execute(sa.select(table))), key=repr)
            for table in tables or schema.metadata.sorted_tables
        }


class MeetingClock:
    """Lets two write transactions overlap: the first reading waits until the other side reads its clock as well.

    Stores read the clock inside their transaction, before they touch a row. SQLite admits one writer at a time,
    so there the two sides meet before they begin (`meet`)."""

    def __init__(self, barrier: Barrier, database: Database) -> None:
        self._barrier = barrier
        self._inside = database.dialect == "postgresql"
        self._met = False

    def meet(self) -> None:
        if not self._inside:
            self._barrier.wait(30)

    def __call__(self) -> datetime:
        if self._inside and not self._met:
            self._met = True
            self._barrier.wait(30)
        return NOW


def resumed(database: Database, clock: Callable[[], datetime], *keys: PartitionKey, **changes: Any) -> int:
    """How many of these partitions an operator resumes."""
    spans = [ExpectedRange(k.source, k.customer_id, k.query_name, k.logical_date, k.logical_date) for k in keys]
    reader, entry = StateReader(database), audit_entry(command="state resume", **changes)
    scopes = scopes_of(spans)
    return PauseStore(database, clock).resume(scopes, entry, lambda c: reader.count(spans, marked=True, within=c)) or 0


def race(database: Database, *sides: Callable[[Database, Callable[[], datetime]], Any]) -> list[Any]:
    """Run each side in a thread of its own with a handle of its own; their transactions start together."""
    barrier = Barrier(len(sides))

    def run(side: Callable[[Database, Callable[[], datetime]], Any]) -> Any:
        handle = another_handle(database)
        clock = MeetingClock(barrier, handle)
        try:
            clock.meet()
            return side(handle, clock)
        finally:
            handle.engine.dispose()

    with ThreadPoolExecutor(len(sides)) as pool:
        return [future.result() for future in [pool.submit(run, side) for side in sides]]


def tamper(database: Database, statement: sa.Update) -> None:
    """Change a closed attempt with the triggers switched off."""
    names = ("closed_attempts_are_frozen", "marks_of_attempts_are_set_once")

    def work(connection: sa.Connection) -> None:
        if database.dialect == "postgresql":
            for name in names:
                connection.exec_driver_sql(f"ALTER TABLE partition_attempt DISABLE TRIGGER {name}")
            connection.execute(statement)
            for name in names:
                connection.exec_driver_sql(f"ALTER TABLE partition_attempt ENABLE TRIGGER {name}")
            return
        found = sa.text("SELECT sql FROM sqlite_master WHERE name = :name")
        made = [str(connection.scalar(found, {"name": name})) for name in names]
        for name in names:
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        connection.execute(statement)
        for trigger in made:
            connection.exec_driver_sql(trigger)

    database.transact(work)

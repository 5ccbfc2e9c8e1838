"""What consumers read: vouched rows, snapshots, readiness, and raw runs as they were received."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date as Day
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Unpack

from penstock.app.chronicle import Chronicle
from penstock.app.opened import os_user
from penstock.config.values import time_span
from penstock.control.filters import AnyCustomers, AnyDay, SliceFilters, customer_ids, day_range
from penstock.control.select import Selection, refuse_unknown
from penstock.errors import ActRefused, PenstockError, UsageError
from penstock.lifecycle import PartitionStatus
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.control.asked_days import AskedDays
    from penstock.pipeline.references import Referenced
    from penstock.raw.reader import RawRun
    from penstock.warehouse.heads import TableHead
    from penstock.warehouse.reader import Explained, Vouched
    from penstock.warehouse.readiness import Coverage, DayCount
    from penstock.warehouse.snapshots import Snapshot, SnapshotStore
    from penstock.warehouse.sql import Relation


class Reading(Chronicle):
    """Only what is vouched for leaves here, and raw runs for operators."""

    def read(
        self,
        table: str,
        *,
        since: AnyDay | None = None,
        until: AnyDay | None = None,
        date: AnyDay | None = None,
        customers: AnyCustomers | None = None,
        columns: Sequence[str] = (),
        as_of: str | None = None,
        schema_version: str | None = None,
        spark: SparkSession | None = None,
        customer: AnyCustomers | None = None,
    ) -> Vouched | DataFrame:
        """The vouched rows of `source.query_name`: with `spark` a DataFrame, else .arrow(), .batches(), .duckdb().
        Versions whose types do not fit are read one by one: `schema_version` names one, `.versions` has all. Raises
        UsageError for the filters that `penstock read` refuses; see `SliceFilters`."""
        first, last = day_range(date, since, until)
        named = customer_ids(customers, customer)
        refuse_unknown(self.settings, Selection(customers=named))
        vouched = self.vouched(
            table,
            since=first,
            until=last,
            customers=named,
            columns=columns,
            as_of=as_of,
            schema_version=schema_version,
        )
        return vouched if spark is None else vouched.spark(spark)

    def vouched(
        self,
        table: str,
        *,
        since: Day | None = None,
        until: Day | None = None,
        customers: AnyCustomers | None = None,
        columns: Sequence[str] = (),
        as_of: str | None = None,
        schema_version: str | None = None,
    ) -> Vouched:
        """The vouched rows of `source.query_name` at this moment: reading them twice gives the same rows. `as_of` names
        a snapshot: what was demoted since it was taken is left out. With `schema_version`, only its rows. A customer or
        a range of days without rows is no error here, as in the filters of a query."""
        from penstock.contract.schema import arrow_schema
        from penstock.warehouse.layout import file_schema
        from penstock.warehouse.reader import Vouched
        from penstock.warehouse.row_filter import Filter

        contract = next((c for c in self.contracts.values() if c.asset == table), None)
        if contract is None:
            known = ", ".join(sorted(c.asset for c in self.contracts.values()))
            raise UsageError(f"unknown table {table} (tables: {known})")
        found = self._heads(table, as_of)
        if schema_version is not None:
            found = _only_version(table, found, schema_version, contract.schema_version)
        wanted = Filter(since, until, customer_ids(customers), tuple(columns))
        return Vouched(
            self.versions, file_schema(arrow_schema(contract.columns)), found, wanted, self._explained_by(found)
        )

    def _referenced(self, table: str, first: Day, last: Day, customers: Sequence[str]) -> Referenced:
        """The vouched slices of these days, for contracts that refer to them."""
        from penstock.contract.schema import arrow_schema
        from penstock.pipeline.references import Referenced
        from penstock.warehouse.heads import heads_and_slices
        from penstock.warehouse.layout import file_schema
        from penstock.warehouse.reader import Vouched
        from penstock.warehouse.row_filter import Filter

        contract = next(c for c in self.contracts.values() if c.asset == table)
        found, slices = heads_and_slices(self.database, contract.source, contract.query_name, first, last, self.hiding)
        fields = file_schema(arrow_schema(contract.columns))
        wanted = Filter(first, last, tuple(customers))
        return Referenced(slices, Vouched(self.versions, fields, found, wanted, self._explained_by(found)))

    def _explained_by(self, heads: Sequence[TableHead]) -> Explained:
        """Wraps what reads these tables: an error that damaged files made is replaced by one that names them."""
        from penstock.warehouse.damage import damage_of
        from penstock.warehouse.diagnosis import explained

        return partial(explained, lambda: damage_of(self.database, self.versions, heads))

    @property
    def hiding(self) -> frozenset[str]:
        """The models whose rows are hidden when they were made from a run that was demoted since."""
        return frozenset(name for name, model in self.settings.models.items() if model.on_demotion == "hide")

    @property
    def snapshots(self) -> SnapshotStore:
        from penstock.warehouse.snapshots import SnapshotStore

        return SnapshotStore(self.database, self.lake)

    def snapshot(self, name: str, keep: timedelta = timedelta(days=30), *, actor: str | None = None) -> Snapshot:
        """Name the present state of the whole warehouse, to read it `as_of` later. In the audit log."""
        self.snapshots.require_new(name)
        assets = sorted({(c.source, c.query_name) for c in self.contracts.values()})
        entry = AuditEntry(actor or os_user(), AuditedAct.SNAPSHOT, {"snapshot": name}, {"keep": str(keep)})
        with self.audited(entry) as act:
            made = self.snapshots.take(name, assets, self.now(), keep, self.hiding)
            act.affected = len(made.tables)
        return made

    def drop_snapshot(self, name: str, *, actor: str | None = None) -> None:
        """Forget a snapshot: vacuum may take its files. In the audit log."""
        self.snapshots.get(name, self.now())  # refuses an unknown name
        entry = AuditEntry(actor or os_user(), AuditedAct.SNAPSHOT_DROP, {"snapshot": name}, {})
        with self.audited(entry) as act:
            self.snapshots.drop(name)
            act.affected = 1

    def _heads(self, table: str, as_of: str | None) -> list[TableHead]:
        """The tables of `source.query_name` that readers see now, or saw when a snapshot was taken."""
        from penstock.warehouse.heads import heads

        source, _, query_name = table.partition(".")
        if as_of is not None:
            return self._heads_as_of(source, query_name, as_of)
        return heads(self.database, source, query_name, self.hiding)

    def _heads_as_of(self, source: str, query_name: str, name: str) -> list[TableHead]:
        from penstock.warehouse.snapshots import as_of

        return as_of(self.database, self.snapshots.get(name, self.now()), source, query_name, self.hiding)

    def withdrawn_since(self, name: str, tables: Sequence[str]) -> int:
        """How many partitions of these tables were demoted since a snapshot was taken."""
        from penstock.warehouse.snapshots import withdrawn_since

        snapshot = self.snapshots.get(name, self.now())
        assets = [c for c in self.contracts.values() if c.asset in tables]
        found = [withdrawn_since(self.database, c.source, c.query_name, snapshot.created_at) for c in assets]
        return sum(len({(day, customer) for day, customer, _ in runs}) for runs in found)

    def sql(
        self,
        statement: str,
        as_of: str | None = None,
        opened: Callable[[Vouched], None] = lambda vouched: None,
        schema_versions: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """One SELECT over vouched rows, on DuckDB; tables are named `source.query_name`. Calls `opened` with each table
        that the statement reads. Of tables in `schema_versions` only the rows of that version are read."""
        import duckdb
        import pyarrow as pa

        from penstock.warehouse.sql import query

        names: list[str] = []
        versions = self._known_tables(schema_versions)

        def opener(name: str) -> Callable[[], Relation]:
            def open_table() -> Relation:
                vouched = self.vouched(name, as_of=as_of, schema_version=versions.get(name))
                names.append(name)
                opened(vouched)
                return vouched

            return open_table

        tables: dict[str, Callable[[], Relation]] = {c.asset: opener(c.asset) for c in self.contracts.values()}
        with self._explained_in(names, as_of)(UsageError, OSError, pa.ArrowException, duckdb.Error):
            reader = query(statement, tables | self._system_tables(names))
        return self._explained_reader(reader, self._explained_in(names, as_of))

    def _known_tables(self, schema_versions: Mapping[str, str] | None) -> Mapping[str, str]:
        """The versions by table; refuses tables that do not exist."""
        known = sorted(contract.asset for contract in self.contracts.values())
        if unknown := sorted(set(schema_versions or ()) - set(known)):
            raise UsageError(f"unknown table {', '.join(unknown)} (tables: {', '.join(known)})")
        return schema_versions or {}

    def _explained_in(self, tables: Sequence[str], as_of: str | None) -> Explained:
        """The same for tables that are known by the time of the error."""
        from penstock.warehouse.damage import damage_of
        from penstock.warehouse.diagnosis import explained

        def diagnose() -> PenstockError | None:
            vouched = [name for name in tables if not name.startswith("system.")]
            if found := damage_of(self.database, self.versions, [h for n in vouched for h in self._heads(n, as_of)]):
                return found
            return self.current().damage() if len(vouched) < len(tables) else None

        return partial(explained, diagnose)

    def _explained_reader(self, reader: pa.RecordBatchReader, explained: Explained) -> pa.RecordBatchReader:
        import pyarrow as pa

        def batches() -> Iterator[pa.RecordBatch]:
            with explained(UsageError, OSError, pa.ArrowException):
                yield from reader

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def _system_tables(self, opened: list[str]) -> dict[str, Callable[[], Relation]]:
        """The projections by their names in SQL; those that are opened are added to a list."""
        from penstock.projections.system import TABLES, system_table

        def opener(name: str) -> Callable[[], Relation]:
            def open_table() -> Relation:
                opened.append(f"system.{name}")
                return system_table(name, self.current())

            return open_table

        return {f"system.{name}": opener(name) for name in TABLES}

    def spark_sql(
        self,
        statement: str,
        spark: SparkSession | None = None,
        as_of: str | None = None,
        opened: Callable[[Vouched], None] = lambda vouched: None,
        schema_versions: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """The same on Spark, for what is too large for one machine. A statement that may not run is refused before
        Spark starts."""
        from pyspark.errors import PySparkException

        from penstock.pipeline.session import start_session
        from penstock.pipeline.work import refusal
        from penstock.sql_guard import SqlRefused, spark_statement

        try:
            checked = spark_statement(statement, {c.asset for c in self.contracts.values()})
        except SqlRefused as error:
            raise UsageError(str(error)) from error
        versions = self._known_tables(schema_versions)
        session = spark or start_session(self.settings.spark)
        views = {name: name.replace(".", "__") for name in checked.tables}
        for name, view in views.items():
            vouched = self.vouched(name, as_of=as_of, schema_version=versions.get(name))
            opened(vouched)
            vouched.spark(session).createOrReplaceTempView(view)
        with self._explained_in(list(views), as_of)(UsageError):
            try:
                return session.sql(checked.text(views)).toArrow().to_reader()
            except PySparkException as error:
                raise UsageError(f"the SQL failed: {refusal(error)}") from error

    def coverage(self, table: str, **filters: Unpack[SliceFilters]) -> list[Coverage]:
        """Day by day how much of what is expected is ready: it can be read, and no demoted run went into it. Days that
        have not ended yet are part of it if they are named: they are not ready. Raises UsageError if nothing is
        expected on any of the days yet, and for the filters that `penstock ready` refuses."""
        from penstock.warehouse.readiness import coverage

        asked = self.asked_days(table, **filters)
        return coverage(self.database, asked.ranges, asked.due)

    def asked_days(self, table: str, **filters: Unpack[SliceFilters]) -> AskedDays:
        """The days that `coverage`, `ready` and `wait_for` are about: what is expected on them, and how they differ
        from those that were asked for."""
        from penstock.control.asked_days import asked_days

        query = next((q for q in self.settings.assets.values() if f"{q.source}.{q.name}" == table), None)
        if query is None:
            known = ", ".join(sorted(c.asset for c in self.contracts.values()))
            raise UsageError(f"unknown table {table} (tables: {known})")
        first, last = day_range(filters.get("date"), filters.get("since"), filters.get("until"))
        customers = customer_ids(filters.get("customers"), filters.get("customer"))
        selection = Selection((), query.source, customers, (query.name,), first, last)
        return asked_days(self.settings, table, selection, self.now())

    def ready(self, table: str, *, require: str | int = "all", **filters: Unpack[SliceFilters]) -> bool:
        """Whether every day of a slice can be read, by a rule: all, any, a number of partitions, or a share (95%).
        A day that was named and has not ended yet is not ready. Raises UsageError if nothing is expected yet, and for
        the filters that `penstock ready` refuses."""
        from penstock.warehouse.readiness import Rule

        rule = Rule(str(require))
        return all(rule.holds(day) for day in self._day_counts([table], filters))

    def wait_for(
        self,
        table: str | Sequence[str],
        *,
        require: str | int = "all",
        patience: timedelta | float | str,
        **filters: Unpack[SliceFilters],
    ) -> list[Coverage]:
        """Wait until a slice of a table, or of each of several, is ready, or patience ends: that long in total, as a
        timedelta, in seconds, or as text such as 10m. Returns the coverage at that moment."""
        from penstock.warehouse.readiness import Rule, wait_for

        tables = [table] if isinstance(table, str) else list(table)
        return wait_for(
            lambda: [day for name in tables for day in self.coverage(name, **filters)],
            Rule(str(require)),
            time_span(patience, "patience"),
            glance=lambda: self._day_counts(tables, filters),
        )

    def _day_counts(self, tables: Sequence[str], filters: SliceFilters) -> list[DayCount]:
        from penstock.warehouse.readiness import day_counts

        asked = [self.asked_days(name, **filters) for name in tables]
        return [count for one in asked for count in day_counts(self.database, one.ranges)]

    def raw_runs(self, key: PartitionKey) -> tuple[list[RawRun], RunId | None]:
        """Every run of a partition in the raw sink, and which of them consumers may read."""
        from penstock.raw.reader import RawReader

        self.ranges(Selection(keys=(key,)))  # refuses unknown names
        state = self.reader.state(key)
        trusted = state.current_run_id if state and state.status is PartitionStatus.SUCCESS else None
        return RawReader(self.lake).runs(key), trusted

    def raw_lines(self, key: PartitionKey) -> Iterator[bytes]:
        """The payload of the trusted run, line by line."""
        found, trusted = self.raw_runs(key)
        if trusted is None:
            raise ActRefused(f"no run of {key} is trusted now, so there is nothing to read; operators may name a --run")
        return self._lines(key, trusted, found)

    def _lines(self, key: PartitionKey, wanted: RunId, found: Sequence[RawRun]) -> Iterator[bytes]:
        from penstock.pipeline.payloads import lines_of
        from penstock.raw.reader import RawReader

        if wanted not in {run.attempt.run_id for run in found}:
            known = ", ".join(run.attempt.run_id for run in found) or "none"
            raise ActRefused(f"{key} has no run {wanted} in the raw sink (runs: {known})")
        raw = RawReader(self.lake)
        seal = raw.seal(AttemptKey(key, wanted))
        if seal is None:
            raise ActRefused(f"run {wanted} of {key} was never sealed: what lies there is not whole")
        return lines_of(raw, seal)


def _only_version(table: str, heads: Sequence[TableHead], version: str, current: str) -> list[TableHead]:
    """The head of one schema version; none if nothing of the contract's own version is published yet."""
    found = [head for head in heads if head.schema_version == version]
    if not found and version != current:
        known = ", ".join(head.schema_version for head in heads) or "none"
        raise UsageError(f"{table} has no partition of schema version {version} (versions: {known})")
    return found

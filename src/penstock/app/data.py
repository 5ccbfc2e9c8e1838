"""Reads of the rows of authoritative runs: tables, SQL, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date as Day
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Unpack, overload

from penstock.app.context import Context, audit_entry
from penstock.control.filters import AnyCustomers, ReadOptions, customer_ids, day_range, refuse_unknown_options
from penstock.control.select import Selection, refuse_unknown
from penstock.errors import PenstockError, SparkFailed, UsageError
from penstock.pipeline.job_errors import job_error
from penstock.pipeline.spark_jobs import progress, refusal
from penstock.sql_guard import SqlRefused, spark_statement
from penstock.state.audited import AuditedAct

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.app.status import StatusService
    from penstock.pipeline.references import Referenced
    from penstock.warehouse.heads import TableHead
    from penstock.warehouse.reader import Explained, Vouched
    from penstock.warehouse.snapshots import Snapshot, SnapshotStore
    from penstock.warehouse.sql import Relation, SqlLimits


class DataService:
    """Reads tables through the pointers of one database snapshot, so a reader never sees a half-replaced partition."""

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status

    @overload
    def read(self, table: str, *, spark: SparkSession, **options: Unpack[ReadOptions]) -> DataFrame: ...

    @overload
    def read(self, table: str, *, spark: None = None, **options: Unpack[ReadOptions]) -> Vouched: ...

    def read(
        self, table: str, *, spark: SparkSession | None = None, **options: Unpack[ReadOptions]
    ) -> Vouched | DataFrame:
        """The rows of `source.query_name`: with `spark` a DataFrame; without it a relation with `.arrow()`,
        `.pandas()`, `.polars()`, `.duckdb()` and `.batches()`.

        Schema versions whose types do not fit are read one by one: `schema_version` names one, `.versions` has all.
        Raises UsageError for the filters that `penstock read` refuses.

        >>> ws.data.read("demo.campaign_daily", since="2024-06-01", columns=["clicks"]).arrow()
        """
        refuse_unknown_options("read", options, ReadOptions)
        first, last = day_range(options.get("date"), options.get("since"), options.get("until"))
        named = customer_ids(options.get("customers"), options.get("customer"))
        refuse_unknown(self._context.settings, Selection(customers=named))
        rows = self.vouched(
            table,
            since=first,
            until=last,
            customers=named,
            columns=options.get("columns", ()),
            as_of=options.get("as_of"),
            schema_version=options.get("schema_version"),
        )
        return rows if spark is None else rows.spark(spark)

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
        """The rows of `source.query_name` at this moment; reading the relation twice gives the same rows. `as_of` names
        a snapshot; partitions that were demoted since it was taken are left out. `schema_version` limits the rows to
        one version. A customer or a range of days without rows is not an error.

        >>> ws.data.vouched("demo.campaign_daily", columns=["clicks"]).arrow()
        """
        from penstock.contract.schema import arrow_schema
        from penstock.warehouse.layout import file_schema
        from penstock.warehouse.reader import Vouched
        from penstock.warehouse.row_filter import Filter

        contract = self._context.contract_of(table)
        found = self._heads(table, as_of)
        if schema_version is not None:
            found = _only_version(table, found, schema_version, contract.schema_version)
        wanted = Filter(since, until, customer_ids(customers), tuple(columns))
        return Vouched(
            self._context.versions,
            file_schema(arrow_schema(contract.columns)),
            found,
            wanted,
            self._explained_by(found),
        )

    def referenced(self, table: str, first: Day, last: Day, customers: Sequence[str]) -> Referenced:
        """The partitions of these days and their rows, for reference checks of other contracts."""
        from penstock.contract.schema import arrow_schema
        from penstock.pipeline.references import Referenced
        from penstock.warehouse.heads import heads_and_slices
        from penstock.warehouse.layout import file_schema
        from penstock.warehouse.reader import Vouched
        from penstock.warehouse.row_filter import Filter

        contract = self._context.contract_of(table)
        found, slices = heads_and_slices(
            self._context.database, contract.source, contract.query_name, first, last, self.hidden_models
        )
        fields = file_schema(arrow_schema(contract.columns))
        wanted = Filter(first, last, tuple(customers))
        return Referenced(slices, Vouched(self._context.versions, fields, found, wanted, self._explained_by(found)))

    def _explained_by(self, heads: Sequence[TableHead]) -> Explained:
        """A context manager for reads of these tables: replaces an error that damaged files cause by one that names
        the files."""
        from penstock.warehouse.damage import damage_of
        from penstock.warehouse.diagnosis import explained

        return partial(explained, lambda: damage_of(self._context.database, self._context.versions, heads))

    @property
    def hidden_models(self) -> frozenset[str]:
        """The models with `on_demotion: hide`: their rows are hidden while an input run is demoted.

        >>> ws.data.hidden_models
        """
        return frozenset(name for name, model in self._context.settings.models.items() if model.on_demotion == "hide")

    @property
    def snapshots(self) -> SnapshotStore:
        """The named snapshots of the warehouse.

        >>> [snapshot.name for snapshot in ws.data.snapshots.all()]
        """
        from penstock.warehouse.snapshots import SnapshotStore

        return SnapshotStore(self._context.database, self._context.lake)

    def take_snapshot(self, name: str, keep: timedelta = timedelta(days=30), *, actor: str | None = None) -> Snapshot:
        """Name the current state of the whole warehouse, to read it with `as_of` until `keep` is over. Audited.

        >>> ws.data.take_snapshot("june-close", timedelta(days=90), actor="kim")
        """
        self.snapshots.require_new(name)
        assets = sorted({(c.source, c.query_name) for c in self._context.contracts.values()})
        entry = audit_entry(actor, AuditedAct.SNAPSHOT, {"snapshot": name}, {"keep": str(keep)})
        with self._context.audited(entry) as action:
            made = self.snapshots.take(name, assets, self._context.now(), keep, self.hidden_models)
            action.affected = len(made.tables)
        return made

    def drop_snapshot(self, name: str, *, actor: str | None = None) -> None:
        """Remove a snapshot, so that `vacuum` can delete its files. Audited.

        >>> ws.data.drop_snapshot("june-close", actor="kim")
        """
        self.snapshots.get(name, self._context.now())  # refuses an unknown name
        entry = audit_entry(actor, AuditedAct.SNAPSHOT_DROP, {"snapshot": name})
        with self._context.audited(entry) as action:
            self.snapshots.drop(name)
            action.affected = 1

    def _heads(self, table: str, as_of: str | None) -> list[TableHead]:
        """The heads of `source.query_name` now, or at a snapshot: one per schema version."""
        from penstock.warehouse.heads import heads

        source, _, query_name = table.partition(".")
        if as_of is not None:
            return self._heads_as_of(source, query_name, as_of)
        return heads(self._context.database, source, query_name, self.hidden_models)

    def _heads_as_of(self, source: str, query_name: str, name: str) -> list[TableHead]:
        from penstock.warehouse.snapshots import as_of

        return as_of(
            self._context.database,
            self.snapshots.get(name, self._context.now()),
            source,
            query_name,
            self.hidden_models,
        )

    def withdrawn_since(self, name: str, tables: Sequence[str]) -> int:
        """The number of partitions of these tables that were demoted since a snapshot was taken.

        >>> ws.data.withdrawn_since("june-close", ["demo.campaign_daily"])
        """
        from penstock.warehouse.snapshots import withdrawn_since

        snapshot = self.snapshots.get(name, self._context.now())
        assets = [c for c in self._context.contracts.values() if c.asset in tables]
        found = [withdrawn_since(self._context.database, c.source, c.query_name, snapshot.created_at) for c in assets]
        return sum(len({(day, customer) for day, customer, _ in runs}) for runs in found)

    def sql(
        self,
        statement: str,
        as_of: str | None = None,
        opened: Callable[[Vouched], None] = lambda vouched: None,
        schema_versions: Mapping[str, str] | None = None,
        limits: SqlLimits | None = None,
    ) -> pa.RecordBatchReader:
        """The result of one SELECT on DuckDB. Tables are named `source.query_name`; `system.<name>` reads a projection.
        Calls `opened` with each table that the statement reads. `schema_versions` limits a table to one version.
        `limits` bounds the rows, the memory and the threads.
        Raises UsageError for a statement that is not a SELECT or that fails.

        >>> ws.data.sql("SELECT count(*) FROM demo.campaign_daily").read_all()
        """
        import duckdb
        import pyarrow as pa

        from penstock.warehouse.sql import query

        names: list[str] = []
        versions = schema_versions or {}
        self._context.require_tables(versions)

        def opener(name: str) -> Callable[[], Relation]:
            def open_table() -> Relation:
                vouched = self.vouched(name, as_of=as_of, schema_version=versions.get(name))
                names.append(name)
                opened(vouched)
                return vouched

            return open_table

        tables: dict[str, Callable[[], Relation]] = {c.asset: opener(c.asset) for c in self._context.contracts.values()}
        with self._explained_in(names, as_of)(UsageError, OSError, pa.ArrowException, duckdb.Error):
            reader = query(statement, tables | self._system_tables(names), limits)
        return self._explained_reader(reader, self._explained_in(names, as_of))

    def _explained_in(self, tables: Sequence[str], as_of: str | None) -> Explained:
        """The same as `_explained_by` for tables whose names are known only when the error occurs."""
        from penstock.warehouse.damage import damage_of
        from penstock.warehouse.diagnosis import explained

        def diagnose() -> PenstockError | None:
            vouched = [name for name in tables if not name.startswith("system.")]
            if found := damage_of(
                self._context.database, self._context.versions, [h for n in vouched for h in self._heads(n, as_of)]
            ):
                return found
            return self._status.current().damage() if len(vouched) < len(tables) else None

        return partial(explained, diagnose)

    def _explained_reader(self, reader: pa.RecordBatchReader, explained: Explained) -> pa.RecordBatchReader:
        import pyarrow as pa

        def batches() -> Iterator[pa.RecordBatch]:
            with explained(UsageError, OSError, pa.ArrowException):
                yield from reader

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def _system_tables(self, opened: list[str]) -> dict[str, Callable[[], Relation]]:
        """The projections by their names in SQL. Appends the name of each one that is read to `opened`."""
        from penstock.app.lateness import LatenessService
        from penstock.projections.system_tables import TABLES, SystemTable, system_table, table_names

        def opener(name: str) -> Callable[[], Relation]:
            def open_table() -> Relation:
                opened.append(f"system.{name}")
                if name not in TABLES:  # it depends on deadlines
                    return SystemTable(name, [LatenessService(self._context, self._status).table()])
                return system_table(name, self._status.current())

            return open_table

        return {f"system.{name}": opener(name) for name in table_names()}

    def spark_sql(
        self,
        statement: str,
        spark: SparkSession | None = None,
        as_of: str | None = None,
        opened: Callable[[Vouched], None] = lambda vouched: None,
        schema_versions: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """The result of one SELECT on Spark, for more data than one machine holds. Refuses a statement that is not
        allowed before it starts Spark.

        >>> ws.data.spark_sql("SELECT sum(clicks) FROM demo.campaign_daily", spark=spark)
        """
        from pyspark.errors import PySparkException

        try:
            checked = spark_statement(statement, {c.asset for c in self._context.contracts.values()})
        except SqlRefused as error:
            raise UsageError(str(error)) from error
        versions = schema_versions or {}
        self._context.require_tables(versions)
        session = self._context.session(spark, writes=False)
        views = {name: name.replace(".", "__") for name in checked.tables}
        for name, view in views.items():
            vouched = self.vouched(name, as_of=as_of, schema_version=versions.get(name))
            opened(vouched)
            vouched.spark(session).createOrReplaceTempView(view)
        with self._explained_in(list(views), as_of)(UsageError):
            try:
                with progress(session, None):
                    return session.sql(checked.text(views)).toArrow().to_reader()
            except PySparkException as error:
                found = job_error(error)
                if not isinstance(found, SparkFailed):
                    raise found from error
                raise UsageError(f"the SQL failed: {refusal(error)}") from error


def _only_version(table: str, heads: Sequence[TableHead], version: str, current: str) -> list[TableHead]:
    """The head of one schema version; empty if nothing of the contract's current version is published yet."""
    found = [head for head in heads if head.schema_version == version]
    if not found and version != current:
        known = ", ".join(head.schema_version for head in heads) or "none"
        raise UsageError(f"{table} has no partition of schema version {version} (versions: {known})")
    return found

"""Reading what is vouched for: the heads without the exceptions, pruned before a file is opened."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import UsageError, WarehouseError
from penstock.lake import Lake
from penstock.lake.protocol import LakeUnavailable
from penstock.partition import PartitionKey
from penstock.spark_frames import frame_of
from penstock.warehouse.files import without
from penstock.warehouse.tables import RUN, DataFile, SortKey, rebuild_hint
from penstock.warehouse.version_union import VersionsConflict, unified
from penstock.warehouse.versions import Versions
from penstock.warehouse.withdrawn import keys_by_table

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

SCHEMA_VERSION = "schema_version"
_S3_ERROR = "AWS Error"  # in the text of each error of Arrow's S3 client; it has no type of its own


class DataFileLost(WarehouseError):
    """A data file that a head names is missing or is no Parquet file any more."""

    remedy = "`penstock recover --from database` writes the file again from raw."


@dataclass(frozen=True, slots=True)
class TableHead:
    """A table at the version that readers see, and the partitions in it that they must not see."""

    name: str
    schema_version: str
    location: str
    version: int
    exceptions: frozenset[SortKey]
    withdrawn: frozenset[tuple[date, str, str]] = frozenset()  # (day, customer, run) that was demoted since
    publication: str | None = None  # that made this version
    withdrawn_inputs: frozenset[SortKey] = frozenset()  # partitions in it that were made from a demoted run

    @property
    def asset(self) -> tuple[str, str]:
        source, query_name, _ = self.name.split(".")
        return source, query_name

    @property
    def hidden_inputs(self) -> frozenset[SortKey]:
        """Those of `withdrawn_inputs` whose rows readers do not get."""
        runs = {(day, customer) for day, customer, _ in self.withdrawn}
        return frozenset(key for key in self.withdrawn_inputs if key in self.exceptions or key in runs)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which part of an asset is read."""

    since: date | None = None
    until: date | None = None
    customers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def may_match(self, file: DataFile) -> bool:
        low, high = file.first[0], file.last[0]
        if (self.since and high < self.since) or (self.until and low > self.until):
            return False
        first, last = file.customers
        return not self.customers or any(first <= customer <= last for customer in self.customers)

    def includes(self, day: date, customer: str) -> bool:
        if (self.since and day < self.since) or (self.until and day > self.until):
            return False
        return not self.customers or customer in self.customers

    def in_spark(self) -> str:
        """The same in Spark's SQL; nothing for everything."""
        terms = []
        if self.since:
            terms.append(f"logical_date >= DATE '{self.since}'")
        if self.until:
            terms.append(f"logical_date <= DATE '{self.until}'")
        if self.customers:
            terms.append(f"customer_id IN ({', '.join(map(_quoted_in_spark, self.customers))})")
        return " AND ".join(terms)

    def expression(self) -> pc.Expression | None:
        terms = []
        if self.since:
            terms.append(ds.field("logical_date") >= self.since)
        if self.until:
            terms.append(ds.field("logical_date") <= self.until)
        if self.customers:
            terms.append(ds.field("customer_id").isin(self.customers))
        expression: pc.Expression | None = None
        for term in terms:
            expression = term if expression is None else expression & term
        return expression


def heads(database: Database, source: str, query_name: str, hiding: Collection[str] | None = None) -> list[TableHead]:
    """All tables of an asset and their exceptions, from one snapshot of the database. See `table_heads`."""
    with database.snapshot() as connection:
        return table_heads(connection, source, query_name, hiding)


def heads_of_all(
    database: Database, assets: Sequence[tuple[str, str]], hiding: Collection[str] | None = None
) -> list[tuple[str, TableHead]]:
    """The tables of several assets (source and query), by asset, all from one snapshot of the database."""
    with database.snapshot() as connection:
        return [
            (f"{source}.{query}", head)
            for source, query in assets
            for head in table_heads(connection, source, query, hiding)
        ]


def heads_and_slices(
    database: Database, source: str, query_name: str, first: date, last: date, hiding: Collection[str] | None = None
) -> tuple[list[TableHead], frozenset[SortKey]]:
    """The tables of an asset and which slices of these days can be read in them, from one snapshot of the database."""
    pointer = schema.warehouse_pointer
    statement = sa.select(pointer.c.logical_date, pointer.c.customer_id).where(
        pointer.c.source == source,
        pointer.c.query_name == query_name,
        pointer.c.logical_date.between(first, last),
        pointer.c.available,
    )
    with database.snapshot() as connection:
        slices = frozenset((row.logical_date, row.customer_id) for row in connection.execute(statement))
        found = table_heads(connection, source, query_name, hiding)
    hidden = (head.withdrawn_inputs & head.exceptions for head in found)
    return found, slices.difference(*hidden)


def table_schemas(
    versions: Versions, database: Database, assets: Sequence[tuple[str, str]]
) -> dict[str, list[pa.Schema]]:
    """The columns of the tables that readers see, by asset: one for each schema version that is served."""
    found: dict[str, list[pa.Schema]] = {}
    for asset, head in heads_of_all(database, assets, ()):
        found.setdefault(asset, []).append(versions.contents(*_version(head)).columns)
    return found


def _version(head: TableHead) -> tuple[str, str, int, str | None]:
    return head.name, head.location, head.version, head.publication


def table_heads(
    connection: sa.Connection, source: str, query_name: str, hiding: Collection[str] | None = None
) -> list[TableHead]:
    """The tables of an asset and their exceptions, as this connection sees them. `hiding` names the models whose rows
    are hidden when they were made from a demoted run, and leaves out tables that serve no partition. None is for
    maintenance, for which all rows and all tables are alike."""
    table, pointer = schema.warehouse_table, schema.warehouse_pointer
    statement = (
        sa.select(table)
        .where(table.c.source == source, table.c.query_name == query_name, table.c.version.is_not(None))
        .order_by(table.c.schema_version)
    )
    if hiding is not None:
        served = sa.exists().where(pointer.c.table_name == table.c.table_name, pointer.c.available)
        statement = statement.where(served)
    rows = connection.execute(statement).all()
    hidden = connection.execute(
        sa.select(pointer.c.table_name, pointer.c.logical_date, pointer.c.customer_id).where(
            sa.text("NOT warehouse_pointer.available"),  # in the words of the index, or SQLite does not use it
            pointer.c.hidden_at.is_(None),
            pointer.c.source == source,
            pointer.c.query_name == query_name,
        )
    ).all()
    exceptions: dict[str, set[SortKey]] = {}
    for row in hidden:
        exceptions.setdefault(row.table_name, set()).add((row.logical_date, row.customer_id))
    withdrawn = {} if hiding is None else keys_by_table(connection, source, query_name)
    if hiding is not None and query_name in hiding:
        for name, keys in withdrawn.items():
            exceptions.setdefault(name, set()).update(keys)
    return [
        TableHead(
            r.table_name,
            r.schema_version,
            r.location,
            r.version,
            frozenset(exceptions.get(r.table_name, ())),
            publication=r.publication,
            withdrawn_inputs=frozenset(withdrawn.get(r.table_name, ())),
        )
        for r in rows
    ]


Explained = Callable[..., AbstractContextManager[None]]  # called with the kinds of errors that damage makes


def _as_it_is(*_kinds: type[Exception]) -> AbstractContextManager[None]:
    return nullcontext()


class Vouched:
    """The vouched rows of one asset at one moment. Reading it again gives the same rows."""

    def __init__(
        self,
        versions: Versions,
        fields: pa.Schema,
        tables: Sequence[TableHead],
        wanted: Filter,
        explained: Explained | None = None,
    ) -> None:
        """`explained` wraps reading: it may raise an error that names damaged files instead of one of these kinds."""
        self._lake = versions.lake
        self._explained = explained or _as_it_is
        self._wanted = wanted
        self._versions = versions
        self._fields = fields
        self._heads = tuple(tables)
        self._pieces = [_Piece(versions, head, wanted) for head in tables]
        self._conflict: VersionsConflict | None = None
        try:
            self._schema = self._one_schema()
        except VersionsConflict as conflict:
            self._schema, self._conflict = fields, conflict

    @property
    def schema(self) -> pa.Schema:
        """The columns of all schema versions together. Raises VersionsConflict when a column has types in them that do
        not fit; `versions` reads such tables."""
        if self._conflict is not None:
            raise self._conflict
        return self._schema

    @property
    def versions(self) -> dict[str, Vouched]:
        """The same rows by schema version, each with the columns and types of its own version."""
        return {
            head.schema_version: Vouched(self._versions, self._fields, [head], self._wanted, self._explained)
            for head in self._heads
        }

    def only(self, *columns: str) -> Vouched:
        """The same rows with these columns."""
        wanted = replace(self._wanted, columns=columns)
        return Vouched(self._versions, self._fields, self._heads, wanted, self._explained)

    @property
    def withdrawn_inputs(self) -> tuple[PartitionKey, ...]:
        """The derived partitions of this read that were made from a run that was demoted since. They are not ready;
        their rows are read all the same, unless the model says `on_demotion: hide`."""
        return self._keys(head.withdrawn_inputs for head in self._heads)

    @property
    def hidden_inputs(self) -> tuple[PartitionKey, ...]:
        """Those of `withdrawn_inputs` whose rows are left out (`on_demotion: hide`)."""
        return self._keys(head.hidden_inputs for head in self._heads)

    def _keys(self, found: Iterable[frozenset[SortKey]]) -> tuple[PartitionKey, ...]:
        keys = {
            PartitionKey(head.asset[0], customer, head.asset[1], day)
            for head, mine in zip(self._heads, found, strict=True)
            for day, customer in mine
            if self._wanted.includes(day, customer)
        }
        return tuple(sorted(keys))

    def arrow(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as a stream, file by file; each file is in table order."""
        with self._explained(OSError, pa.ArrowException, DataFileLost):
            for piece in self._pieces:
                yield from piece.share.fitted(self.schema)

    def shares(self) -> list[Share]:
        """The work of reading, file by file, to be spread over workers."""
        return [replace(piece.share, files=(path,)) for piece in self._pieces for path in piece.files]

    def polars(self) -> Any:
        import polars

        return polars.from_arrow(self.arrow())

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation that scans the data files lazily: by itself where it can open them, and otherwise, or on a
        connection that was brought along and may see no files, through our storage layer."""
        import duckdb

        opens = connection is None and self._lake.opens_by_path
        connection = connection or duckdb.connect()
        with self._explained(duckdb.Error, OSError, pa.ArrowException):
            relations = [piece.relation(connection, self.schema, opens) for piece in self._pieces if piece.files]
        if not relations:
            return connection.from_arrow(self.schema.empty_table())
        whole = relations[0]
        for relation in relations[1:]:
            whole = whole.union(relation)
        return whole

    def spark(self, session: SparkSession) -> DataFrame:
        """A Spark DataFrame over exactly the vouched files: scanned by Spark itself where it can open them, else by its
        workers through our storage layer."""
        if not _opens(session, self._lake):
            return self._spark_through_storage(session)
        from pyspark.errors import PySparkException

        with self._explained(PySparkException):
            frames = [piece.frame(session, self.schema) for piece in self._pieces if piece.files]
        if not frames:
            return frame_of(session, self.schema.empty_table())
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def collected(self, frame: DataFrame) -> pa.Table:
        """The rows of a DataFrame that was made of this one; damaged files are named."""
        from pyspark.errors import PySparkException

        with self._explained(PySparkException):
            return frame.toArrow()

    def _spark_through_storage(self, session: SparkSession) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        columns, shares = self.schema, self.shares()
        if not shares:
            return frame_of(session, columns.empty_table())

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for share in batch.column("share").to_pylist():
                    yield from pickle.loads(share).fitted(columns)  # noqa: S301 - written right here

        table = pa.table({"share": pa.array([pickle.dumps(share) for share in shares], pa.binary())})
        spread = frame_of(session, table).repartition(len(shares))
        return spread.mapInArrow(read, from_arrow_schema(columns))

    def _one_schema(self) -> pa.Schema:
        """The columns of this read. Versions that do not fit the others are left out if they have no rows in it."""
        known = {f.name: f for columns in [p.schema for p in self._pieces] or [self._fields] for f in columns}
        known[SCHEMA_VERSION] = pa.field(SCHEMA_VERSION, pa.string())
        if unknown := [name for name in self._wanted.columns if name not in known]:
            raise UsageError(f"unknown column {', '.join(unknown)} (columns: {', '.join(known)})")
        try:
            columns = self._unified()
        except VersionsConflict:
            with self._explained(OSError, pa.ArrowException, DataFileLost):
                self._pieces = [piece for piece in self._pieces if piece.holds_rows()]
            columns = self._unified()
        if not self._wanted.columns:
            return columns.append(known[SCHEMA_VERSION])
        found = {**known, **{field.name: field for field in columns}}
        return pa.schema([found[name] for name in self._wanted.columns])

    def _unified(self) -> pa.Schema:
        """The columns of all versions, or the wanted ones of them. Raises VersionsConflict."""
        found = [(piece.version, piece.schema) for piece in self._pieces] or [("", self._fields)]
        if names := self._wanted.columns:
            found = [(version, pa.schema([f for f in columns if f.name in names])) for version, columns in found]
        return unified(".".join(self._heads[0].asset) if self._heads else "", found)


@dataclass(frozen=True, slots=True)
class Share:
    """Some files of one schema version, to be read anywhere: it holds plain values only, and travels."""

    _lake: Lake
    head: TableHead
    wanted: Filter
    files: tuple[str, ...]  # below the lake's root
    columns: pa.Schema  # of the files

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        head = self.head
        columns = [name for name in self.columns.names if name in names]
        needed = ("customer_id", "logical_date", RUN) if head.withdrawn else ("customer_id", "logical_date")
        hides = bool(head.exceptions or head.withdrawn)
        keys = [name for name in needed if hides and name not in columns]
        for batch in self._scanned(columns + keys):
            rows = pa.Table.from_batches([batch])
            if head.exceptions:
                rows = without(rows, set(head.exceptions))
            if head.withdrawn:
                rows = _without_runs(rows, head.withdrawn)
            rows = rows.select(columns)
            if SCHEMA_VERSION in names:
                version = pa.repeat(pa.scalar(head.schema_version, pa.string()), rows.num_rows)
                rows = rows.append_column(SCHEMA_VERSION, version)
            yield from rows.to_batches()

    def _scanned(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The batches of the files. A storage that does not answer raises LakeUnavailable, a file that is missing or
        damaged raises DataFileLost."""
        try:
            yield from self.dataset().scanner(columns=list(columns), filter=self.wanted.expression()).to_batches()
        except (FileNotFoundError, pa.ArrowInvalid) as error:  # on a worker nobody can say which partitions these are
            raise DataFileLost(
                f"table {self.head.name}: a data file is missing or damaged ({str(error).partition(chr(10))[0]}):"
                f" {rebuild_hint(self.head.name)}"
            ) from error
        except OSError as error:
            if _S3_ERROR not in str(error):
                raise
            raise LakeUnavailable(f"table {self.head.name} cannot be read from {self._lake.url}: {error}") from error

    def fitted(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches in these columns; what the schema version does not have is null."""
        return (_fitted(batch, wanted) for batch in self.batches(wanted.names))

    def dataset(self) -> ds.Dataset:
        filesystem, root = self._lake.filesystem()
        paths = [f"{root}/{path}" for path in self.files]
        return ds.dataset(paths, schema=self.columns, format="parquet", filesystem=filesystem, partitioning=None)


class _Piece:
    """The vouched rows of one schema version."""

    def __init__(self, versions: Versions, head: TableHead, wanted: Filter) -> None:
        contents = versions.contents(*_version(head))
        self._head = head
        self._wanted = wanted
        self.version = head.schema_version
        self.schema = contents.columns
        self.files = [f"{head.location}/{file.path}" for file in contents.files if wanted.may_match(file)]
        self._uris = [versions.lake.uri(path) for path in self.files]
        self.share = Share(versions.lake, head, wanted, tuple(self.files), self.schema)

    def holds_rows(self) -> bool:
        """Whether readers find a row of this version; reads until the first one."""
        return any(batch.num_rows for batch in self.share.batches(["customer_id"]))

    def relation(
        self, connection: duckdb.DuckDBPyConnection, wanted: pa.Schema, opens: bool
    ) -> duckdb.DuckDBPyRelation:
        rows = self._scan(connection) if opens else self._arrow(connection)
        if self._head.exceptions:
            hidden = connection.from_arrow(_as_table(self._head.exceptions))
            rows = rows.join(hidden, "customer_id, logical_date", "anti")
        if self._head.withdrawn:
            gone = connection.from_arrow(_runs_table(self._head.withdrawn))
            rows = rows.join(gone, f"customer_id, logical_date, {RUN}", "anti")
        columns = []
        for field in wanted:
            if field.name == SCHEMA_VERSION:
                columns.append(f"'{self._head.schema_version}' AS {SCHEMA_VERSION}")
            elif field.name in self.schema.names:
                columns.append(f'"{field.name}"')
            else:
                columns.append(f'NULL AS "{field.name}"')
        return rows.project(", ".join(columns))

    def _arrow(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """DuckDB receives Arrow datasets: it opens no file itself."""
        dataset, expression = self.share.dataset(), self._wanted.expression()
        return connection.from_arrow(dataset if expression is None else dataset.filter(expression))

    def _scan(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        from duckdb import ColumnExpression, ConstantExpression

        rows, wanted = connection.read_parquet(self._uris), self._wanted
        day, customer = ColumnExpression("logical_date"), ColumnExpression("customer_id")
        if wanted.since:
            rows = rows.filter(day >= ConstantExpression(wanted.since))
        if wanted.until:
            rows = rows.filter(day <= ConstantExpression(wanted.until))
        if wanted.customers:
            rows = rows.filter(customer.isin(*(ConstantExpression(name) for name in wanted.customers)))
        return rows

    def frame(self, session: SparkSession, columns: pa.Schema) -> DataFrame:
        """Said in SQL, in few words: every column object would cost a call to the JVM."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        rows = session.read.schema(from_arrow_schema(self.schema)).parquet(*self._uris)
        if wanted := self._wanted.in_spark():
            rows = rows.where(wanted)
        if self._head.exceptions:
            hidden = frame_of(session, _as_table(self._head.exceptions))
            rows = rows.join(F.broadcast(hidden), ["customer_id", "logical_date"], "left_anti")
        if self._head.withdrawn:
            gone = frame_of(session, _runs_table(self._head.withdrawn))
            rows = rows.join(F.broadcast(gone), ["customer_id", "logical_date", RUN], "left_anti")
        return rows.selectExpr(*(self._in_spark(field) for field in columns))

    def _in_spark(self, field: pa.Field) -> str:
        if field.name == SCHEMA_VERSION:
            return f"'{self._head.schema_version}' AS {SCHEMA_VERSION}"
        known = field.name in self.schema.names
        if known and self.schema.field(field.name).type == field.type:
            return f"`{field.name}`"
        return f"CAST({f'`{field.name}`' if known else 'NULL'} AS {_spark_type(field.type)}) AS `{field.name}`"


def _spark_type(kind: pa.DataType) -> str:
    """The type in Spark's SQL, whatever the session calls a timestamp and takes for a keyword. All our times are
    moments, whether a table says so or not."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{member.name}`: {_spark_type(member.type)}' for member in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{_spark_type(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp_ltz"
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(kind).simpleString())


def _quoted_in_spark(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _opens(session: SparkSession, lake: Lake) -> bool:
    """Whether Spark opens the lake's files itself: those on S3 only where the session was given the means."""
    if not lake.url.startswith("s3://"):
        return lake.opens_by_path
    return session.conf.get("spark.hadoop.fs.s3.impl", None) is not None


def _fitted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch in the columns of `wanted`; a column that its schema version does not have is null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _without_runs(rows: pa.Table, runs: frozenset[tuple[date, str, str]]) -> pa.Table:
    """The rows without those of these runs; first by run, which is rarely any of them."""
    suspicious = pc.is_in(rows[RUN], value_set=pa.array(sorted({run for _, _, run in runs}), pa.string()))
    if not pc.any(suspicious).as_py():
        return rows
    keys = zip(*(rows[name].to_pylist() for name in ("logical_date", "customer_id", RUN)), strict=True)
    return rows.filter(pa.array([key not in runs for key in keys], pa.bool_()))


def _runs_table(runs: frozenset[tuple[date, str, str]]) -> pa.Table:
    ordered = sorted(runs)
    return pa.table(
        {
            "customer_id": pa.array([customer for _, customer, _ in ordered], pa.string()),
            "logical_date": pa.array([day for day, _, _ in ordered], pa.date32()),
            RUN: pa.array([run for _, _, run in ordered], pa.string()),
        }
    )


def _as_table(keys: frozenset[SortKey]) -> pa.Table:
    ordered = sorted(keys)
    return pa.table(
        {
            "customer_id": pa.array([customer for _, customer in ordered], pa.string()),
            "logical_date": pa.array([day for day, _ in ordered], pa.date32()),
        }
    )

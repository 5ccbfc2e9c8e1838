"""One Delta table per source, query and schema version: where it lies, what its columns are, which files it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import LeaseLost, WarehouseError
from penstock.lake import Lake
from penstock.lake.protocol import LakeRefused, LakeUnavailable
from penstock.warehouse.delta_log import PUBLICATION

if TYPE_CHECKING:
    from deltalake import DeltaTable

MONTH = "_month"
RUN = "_run_id"
FENCE = "penstock/fence"
KEY_COLUMNS = (pa.field("customer_id", pa.string()), pa.field("logical_date", pa.date32()))

_STATISTICS = ("num_records", *(f"{end}.{column.name}" for end in ("min", "max") for column in KEY_COLUMNS))

SortKey = tuple[date, str]  # (logical_date, customer_id): the order of rows inside a table


def location(source: str, query_name: str, schema_version: str) -> str:
    return f"warehouse/{source}/{query_name}/{schema_version}"


def file_schema(fields: pa.Schema) -> pa.Schema:
    """The columns of a data file: key, the contract's fields, the run. The month is in the folder's name."""
    return pa.schema([*KEY_COLUMNS, *fields, pa.field(RUN, pa.string())])


def month_of(day: date) -> str:
    return f"{day:%Y-%m}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table, with what is needed to decide whether it must be opened."""

    path: str
    month: str
    size: int
    records: int
    first: SortKey
    last: SortKey
    customers: tuple[str, str]

    def may_hold(self, key: SortKey) -> bool:
        return self.first[0] <= key[0] <= self.last[0] and self.customers[0] <= key[1] <= self.customers[1]


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that was written but is in no table yet."""

    path: str
    size: int
    records: int
    month: str
    stats: str


class Table:
    """A Delta table at one version. A commit succeeds only if nobody committed since this object was opened."""

    def __init__(self, lake: Lake, name: str, path: str, version: int | None = None) -> None:
        self.name = name
        self.path = path
        self.lake = lake
        self._delta = _open(lake, name, path, version)

    @property
    def version(self) -> int:
        return int(self._delta.version())

    def arrow_schema(self) -> pa.Schema:
        """The columns as readers see them."""
        return pa.schema(self._delta.schema().to_arrow())

    def require_columns(self, fields: pa.Schema) -> None:
        """Delta accepts files of any shape: so we look before we add one."""
        expected = pa.schema([*file_schema(fields), pa.field(MONTH, pa.string())])
        found = self.arrow_schema()
        if {f.name: f.type for f in found} != {f.name: f.type for f in expected}:
            raise WarehouseError(
                f"table {self.name} has the columns {found.names}, the contract has {expected.names}:"
                " give the query a new schema_version"
            )

    def files(self) -> list[DataFile]:
        """Every file of this version, with its bounds from the log."""
        actions = pa.table(self._delta.get_add_actions(flatten=True))
        if not actions.num_rows:
            return []
        return [_file(self.name, row) for row in actions.to_pylist()]

    def has_published(self, batch_id: str) -> bool:
        return self._delta.transaction_version(_publication(batch_id)) is not None

    def fence(self) -> Table:
        """Make the commit of everybody who opened the table before fail. The table, opened anew."""
        self._commit([], [])
        return Table(self.lake, self.name, self.path)

    def publish(self, batch_id: str, add: Sequence[Staged], remove: Sequence[str], now: datetime) -> int:
        """One atomic commit of files in and files out. The new version."""
        moment = int(now.timestamp() * 1000)
        actions = [_add_action(staged, moment) for staged in add]
        self._commit(actions + [_remove_action(path, moment) for path in remove], [_publication(batch_id)])
        return Table(self.lake, self.name, self.path).version

    def vacuum(self, keep: Sequence[int], retention_hours: int, *, dry_run: bool) -> list[str]:
        """Delete files that belong to none of the versions `keep` and left the table longer ago; says which."""
        from deltalake.exceptions import DeltaError

        try:
            return self._delta.vacuum(
                retention_hours,
                dry_run=dry_run,
                enforce_retention_duration=False,  # the least that is sensible is ours to say
                full=True,  # also files of publications that came to nothing
                keep_versions=sorted(set(keep)),
            )
        except DeltaError as error:
            raise WarehouseError(f"table {self.name} cannot be vacuumed: {error}") from error

    def _commit(self, actions: list[Any], publications: list[str]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        fence = (self._delta.transaction_version(FENCE) or 0) + 1
        marks = [Transaction(FENCE, fence), *(Transaction(name, 1) for name in publications)]
        try:
            with _writing(self.lake, self.path):
                self._delta.create_write_transaction(
                    actions,
                    "append",
                    self._delta.schema(),
                    [MONTH],
                    commit_properties=CommitProperties(app_transactions=marks),
                )
        except CommitFailedError as error:
            raise LeaseLost(
                f"table {self.name} was changed by another process since we opened it: run again"
            ) from error


def table_exists(lake: Lake, path: str) -> bool:
    """Whether there is a Delta table at this path."""
    from deltalake import DeltaTable

    return bool(DeltaTable.is_deltatable(lake.uri(path), storage_options=lake.storage_options()))


def ensure_exists(lake: Lake, path: str, fields: pa.Schema) -> None:
    """Create the Delta table if it is not there. The caller holds the table's lease."""
    from deltalake import DeltaTable, Schema

    uri, options = lake.uri(path), lake.storage_options()
    if table_exists(lake, path):
        return
    columns = pa.schema([*file_schema(fields), pa.field(MONTH, pa.string())])
    with _writing(lake, path):
        DeltaTable.create(
            uri,
            Schema.from_arrow(columns),
            mode="ignore",
            partition_by=[MONTH],
            configuration={"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 3650 days"},
            storage_options=options,
        )


# What delta-rs quotes when the storage refuses a write: local errors by number, S3 by its code.
_REFUSED = re.compile(r"os error (1|13|20|21|30)\)|Os \{ code: (1|13|20|21|30),|AccessDenied|NoSuchBucket|Forbidden")


@contextmanager
def _writing(lake: Lake, path: str) -> Iterator[None]:
    """Translates errors of the storage in a write of delta-rs. Lost races (CommitFailedError) pass."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        text = f"cannot write the Delta log of {path} in the lake {lake.url}: {' '.join(str(error).split())}"
        if _REFUSED.search(text):
            raise LakeRefused(f"{text}; check the owner and the permissions of the storage") from error
        if isinstance(error, OSError):
            raise LakeUnavailable(text) from error
        raise WarehouseError(text) from error


def _open(lake: Lake, name: str, path: str, version: int | None) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    at = "" if version is None else f" at version {version}"
    try:
        return DeltaTable(lake.uri(path), version=version, storage_options=lake.storage_options())
    except TableNotFoundError as error:
        raise WarehouseError(
            f"table {name}: there is no Delta table{at} in {lake.uri(path)}, but the state database names it;"
            f" {rebuild_hint(name)}"
        ) from error
    except DeltaError as error:
        raise WarehouseError(
            f"table {name}: the Delta table in {lake.uri(path)} cannot be opened{at}: {error}; {rebuild_hint(name)}"
        ) from error


def rebuild_hint(name: str) -> str:
    """The command that rebuilds a damaged table (`source.query_name.schema_version`)."""
    return f"`penstock recover --from database --table {name.rpartition('.')[0]}` rebuilds it from raw"


def _publication(batch_id: str) -> str:
    return f"{PUBLICATION}{batch_id}"


def _add_action(staged: Staged, moment: int) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(staged.path, staged.size, {MONTH: staged.month}, moment, True, staged.stats)


def _remove_action(path: str, moment: int) -> Any:
    from deltalake.transaction import RemoveAction

    month = path.partition("=")[2].partition("/")[0]
    return RemoveAction(path, True, moment, None, {MONTH: month})


def _file(table: str, row: dict[str, Any]) -> DataFile:
    if any(row.get(name) is None for name in _STATISTICS):
        raise WarehouseError(
            f"table {table}: the Delta log has no statistics of its file {row['path']}, by which readers choose files:"
            f" {rebuild_hint(table)}"
        )
    return DataFile(
        row["path"],
        row[f"partition.{MONTH}"],
        row["size_bytes"],
        row["num_records"],
        (row["min.logical_date"], row["min.customer_id"]),
        (row["max.logical_date"], row["max.customer_id"]),
        (row["min.customer_id"], row["max.customer_id"]),
    )

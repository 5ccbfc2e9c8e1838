"""Delta Lake tables, through delta-rs. Only modules named `delta*` know this format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.errors import LeaseLost, WarehouseError
from penstock.lake import Lake
from penstock.lake.protocol import LakeRefused, LakeUnavailable
from penstock.warehouse import delta_log
from penstock.warehouse.format import Commit, DataFile, FileStatistics, StagedFile
from penstock.warehouse.layout import KEY_NAMES, MONTH, rebuild_hint, table_schema

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

_FENCE = "penstock/fence"
_STATISTICS = ("num_records", *(f"{end}.{column}" for end in ("min", "max") for column in KEY_NAMES))
_TABLE_PROPERTIES = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 3650 days"}


@dataclass(frozen=True, slots=True)
class DeltaFormat:
    """Implements `TableFormat`."""

    lake: Lake

    def exists(self, location: str) -> bool:
        from deltalake import DeltaTable

        options = self.lake.storage_options()
        return bool(DeltaTable.is_deltatable(self.lake.uri(location), storage_options=options))

    def create(self, location: str, fields: pa.Schema) -> None:
        from deltalake import DeltaTable, Schema

        if self.exists(location):
            return
        with _translated_writes(self.lake, location):
            DeltaTable.create(
                self.lake.uri(location),
                Schema.from_arrow(table_schema(fields)),
                mode="ignore",
                partition_by=[MONTH],
                configuration=_TABLE_PROPERTIES,
                storage_options=self.lake.storage_options(),
            )

    def open(self, name: str, location: str, version: int | None = None) -> Table:
        return Table(self.lake, name, location, version)

    def reset(self, location: str) -> None:
        delta_log.delete(self.lake, location)

    def locations(self) -> set[str]:
        return delta_log.table_locations(self.lake)

    def newest_version(self, location: str) -> int:
        return delta_log.newest_version(self.lake, location)

    def commits_after(self, location: str, version: int, until: int | None = None) -> Iterator[Commit]:
        return delta_log.commits_after(self.lake, location, version, until)

    def commits_at(self, versions: Sequence[tuple[str, int]]) -> list[Commit | None]:
        return delta_log.commits_at(self.lake, versions)

    def encode_statistics(self, statistics: FileStatistics) -> str:
        return delta_log.encode_statistics(statistics)


class Table:
    """A Delta table at one version. Implements `format.Table`.

    The fence is an application transaction whose number grows with each commit. delta-rs rejects a commit whose
    application transactions changed since the table was opened; without the fence it would accept two concurrent
    appends.
    """

    def __init__(self, lake: Lake, name: str, path: str, version: int | None = None) -> None:
        self.name = name
        self.path = path
        self._lake = lake
        self._delta = _open(lake, name, path, version)

    @property
    def version(self) -> int:
        return int(self._delta.version())

    def arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self._delta.schema().to_arrow())

    def files(self) -> list[DataFile]:
        import pyarrow as pa

        actions = pa.table(self._delta.get_add_actions(flatten=True))
        if not actions.num_rows:
            return []
        return [_data_file(self.name, row) for row in actions.to_pylist()]

    def has_published(self, batch_id: str) -> bool:
        return self._delta.transaction_version(_publication(batch_id)) is not None

    def history(self) -> Iterator[Commit]:
        return delta_log.commits_after(self._lake, self.path, -1, self.version)

    def fence(self) -> Table:
        self._commit([], [])
        return Table(self._lake, self.name, self.path)

    def publish(self, batch_id: str, add: Sequence[StagedFile], remove: Sequence[str], now: datetime) -> int:
        moment = int(now.timestamp() * 1000)
        actions = [_add_action(staged, moment) for staged in add]
        self._commit(actions + [_remove_action(path, moment) for path in remove], [_publication(batch_id)])
        return Table(self._lake, self.name, self.path).version

    def vacuum(self, keep: Sequence[int], retention_hours: int, *, dry_run: bool) -> list[str]:
        from deltalake.exceptions import DeltaError

        try:
            return self._delta.vacuum(
                retention_hours,
                dry_run=dry_run,
                enforce_retention_duration=False,  # `warehouse vacuum` enforces its own minimum
                full=True,  # also files of discarded publications
                keep_versions=sorted(set(keep)),
            )
        except DeltaError as error:
            raise WarehouseError(f"table {self.name} cannot be vacuumed: {error}") from error

    def _commit(self, actions: list[Any], publications: list[str]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        fence = (self._delta.transaction_version(_FENCE) or 0) + 1
        marks = [Transaction(_FENCE, fence), *(Transaction(name, 1) for name in publications)]
        try:
            with _translated_writes(self._lake, self.path):
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


# delta-rs reports a refused write only in its message: local errors by number, S3 errors by code.
_REFUSED = re.compile(r"os error (1|13|20|21|30)\)|Os \{ code: (1|13|20|21|30),|AccessDenied|NoSuchBucket|Forbidden")


@contextmanager
def _translated_writes(lake: Lake, path: str) -> Iterator[None]:
    """Translates storage errors of a delta-rs write. CommitFailedError, a lost race, passes unchanged."""
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


def _open(lake: Lake, name: str, path: str, version: int | None) -> deltalake.DeltaTable:
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


def _publication(batch_id: str) -> str:
    return f"{delta_log.PUBLICATION}{batch_id}"


def _add_action(staged: StagedFile, moment: int) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(staged.path, staged.size, {MONTH: staged.month}, moment, True, staged.stats)


def _remove_action(path: str, moment: int) -> Any:
    from deltalake.transaction import RemoveAction

    month = path.partition("=")[2].partition("/")[0]
    return RemoveAction(path, True, moment, None, {MONTH: month})


def _data_file(table: str, row: dict[str, Any]) -> DataFile:
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

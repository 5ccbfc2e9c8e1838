"""Delta Lake tables, through delta-rs. Only modules named `delta*` know this format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.errors import LeaseLost, WarehouseError
from penstock.lake import Lake
from penstock.lake.protocol import LakeRefused, LakeUnavailable
from penstock.warehouse import delta_commit, delta_log
from penstock.warehouse.delta_commit import Action
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
        from deltalake import Schema

        if not self.exists(location):
            columns = Schema.from_arrow(table_schema(fields)).to_json()
            delta_commit.create(self.lake, location, columns, _TABLE_PROPERTIES)

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

    A commit creates the log entry of the next version, so it fails if any other process committed since the table was
    opened. The fence is an application transaction whose number grows with each commit: delta-rs, which writes some of
    the commits, would accept two concurrent appends without it.
    """

    def __init__(self, lake: Lake, name: str, path: str, version: int | None = None) -> None:
        self.name = name
        self.path = path
        self._lake = lake
        self._delta = _open(lake, name, path, version)
        self._fence: bytes | None = None  # the log entry of our fence, which follows the version of `_delta`

    @property
    def version(self) -> int:
        return int(self._delta.version()) + (self._fence is not None)

    def arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self._delta.schema().to_arrow())

    def files(self) -> list[DataFile]:
        import pyarrow as pa

        actions = pa.table(self._delta.get_add_actions(flatten=True))
        if not actions.num_rows:
            return []
        return [_data_file(self.name, row) for row in actions.to_pylist()]

    def has_published(self, batch_id: str, at: int | None = None) -> bool:
        if at is not None and at <= self.version:
            entry = delta_log.commits_at(self._lake, [(self.path, at)])[0]
            if entry is not None and batch_id in entry.publications:
                return True
        return self._delta.transaction_version(_publication(batch_id)) is not None

    def history(self) -> Iterator[Commit]:
        return delta_log.commits_after(self._lake, self.path, -1, self.version)

    def fence(self) -> Table:
        if self._fence is not None:
            return Table(self._lake, self.name, self.path, self.version).fence()
        entry = self._append([], [])
        if entry is None:
            self._commit_by_delta_rs([], [])
            return Table(self._lake, self.name, self.path)
        fenced = copy(self)  # a fence changes neither files nor publications, so nothing is read again
        fenced._fence = entry
        return fenced

    def publish(self, batch_id: str, add: Sequence[StagedFile], remove: Sequence[str], now: datetime) -> int:
        moment = int(now.timestamp() * 1000)
        names = [_publication(batch_id)]
        gone = [delta_commit.remove_action(path, moment) for path in remove]
        if self._append([*(delta_commit.add_action(staged, moment) for staged in add), *gone], names) is not None:
            return self.version + 1
        table = self if self._fence is None else Table(self._lake, self.name, self.path, self.version)
        actions = [_add_action(staged, moment) for staged in add]
        table._commit_by_delta_rs(actions + [_remove_action(path, moment) for path in remove], names)
        return Table(self._lake, self.name, self.path).version

    def vacuum(self, keep: Sequence[int], retention_hours: int, *, dry_run: bool) -> list[str]:
        from deltalake.exceptions import DeltaError

        delta = _open(self._lake, self.name, self.path, self.version) if self._fence else self._delta
        try:
            return delta.vacuum(
                retention_hours,
                dry_run=dry_run,
                enforce_retention_duration=False,  # `warehouse vacuum` enforces its own minimum
                full=True,  # also files of discarded publications
                keep_versions=sorted(set(keep)),
            )
        except DeltaError as error:
            raise WarehouseError(f"table {self.name} cannot be vacuumed: {error}") from error

    def _append(self, actions: Sequence[Action], publications: Sequence[str]) -> bytes | None:
        """Write the next version, and return its log entry; None if delta-rs has to write it."""
        version, properties = self.version + 1, self._delta.metadata().configuration
        if not delta_commit.is_plain(version, self._delta.protocol().min_writer_version, properties):
            return None
        # A fence is at most as high as its version, so this one is higher than those before it.
        marks = [
            delta_commit.transaction(_FENCE, version),
            *(delta_commit.transaction(name, 1) for name in publications),
        ]
        return delta_commit.append(self._lake, self.name, self.path, version, [*actions, *marks], self._fence)

    def _commit_by_delta_rs(self, actions: list[Any], publications: Sequence[str]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        marks = [Transaction(_FENCE, self.version + 1), *(Transaction(name, 1) for name in publications)]
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

    return RemoveAction(path, True, moment, None, {MONTH: delta_commit.month_in(path)})


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

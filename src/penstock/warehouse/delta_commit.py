"""Writes commits to a Delta log: one object for each version, created only if it does not exist.

A commit of delta-rs costs six requests one after the other, and every open table is read again after it. Here a commit
is one read and one conditional write, and the version of the table is known afterwards. Commits that write a
checkpoint, and tables with a newer protocol, are left to delta-rs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import orjson

from penstock import __version__
from penstock.errors import LeaseLost
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing, LakeUnavailable
from penstock.partition import new_ulid
from penstock.warehouse.delta_log import log_path
from penstock.warehouse.format import StagedFile
from penstock.warehouse.layout import MONTH

Action = Mapping[str, Mapping[str, Any]]

_INTERVAL = "delta.checkpointInterval"
_DEFAULT_INTERVAL = 100
_WRITER_VERSION = 2  # of the Delta protocol: later ones demand more of a commit
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": _WRITER_VERSION}


def is_plain(version: int, writer_version: int, properties: Mapping[str, str]) -> bool:
    """Whether `append` may write this version of a table: the protocol is the one that `create` declares, and the
    commit is not one after which delta-rs writes a checkpoint."""
    interval = int(properties.get(_INTERVAL, _DEFAULT_INTERVAL))
    return writer_version <= _WRITER_VERSION and (interval <= 0 or (version + 1) % interval != 0)


def create(lake: Lake, location: str, schema: str, properties: Mapping[str, str]) -> None:
    """Write version 0 of a table with this schema (JSON of Delta), unless it exists."""
    metadata = {
        "id": str(uuid4()),
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [MONTH],
        "createdTime": _now(),
        "configuration": dict(properties),
    }
    lake.create(log_path(location, 0), _entry("CREATE TABLE", [{"protocol": _PROTOCOL}, {"metaData": metadata}]))


def append(
    lake: Lake, table: str, location: str, version: int, actions: Sequence[Action], before: bytes | None
) -> bytes | None:
    """Write a version of the log and return its entry. `before` is the entry of the version before it, if the caller
    wrote it. Raises LeaseLost if the version exists, or if `before` is not in the log any more: the log was deleted,
    and perhaps begun again. Returns None and writes nothing if the version before has no entry: delta-rs names what
    is wrong with such a log."""
    found = lake.read_many([log_path(location, version - 1)])[0]
    if before is not None and found != before:
        raise _lost(table)
    if found is None:
        return None
    entry, path = _entry("WRITE", actions), log_path(location, version)
    try:
        is_created = lake.create(path, entry)
    except LakeUnavailable:
        if not _is_there(lake, path, entry):  # else only the response was lost
            raise
        return entry
    if not is_created and not _is_there(lake, path, entry):
        raise _lost(table)
    return entry


def add_action(staged: StagedFile, moment: int) -> Action:
    facts = {"size": staged.size, "modificationTime": moment, "dataChange": True, "stats": staged.stats}
    return {"add": {"path": staged.path, "partitionValues": {MONTH: staged.month}, **facts}}


def remove_action(path: str, moment: int) -> Action:
    facts = {"dataChange": True, "deletionTimestamp": moment, "extendedFileMetadata": False}
    return {"remove": {"path": path, "partitionValues": {MONTH: month_in(path)}, **facts}}


def transaction(application: str, number: int) -> Action:
    return {"txn": {"appId": application, "version": number}}


def month_in(path: str) -> str:
    """The month of a data file, by the name of its folder."""
    return path.partition("=")[2].partition("/")[0]


def _entry(operation: str, actions: Sequence[Action]) -> bytes:
    """The lines of a log entry. Its `txnId` is unique, so that a writer recognises its own entry."""
    parameters = {"mode": "Append", "partitionBy": f'["{MONTH}"]'} if operation == "WRITE" else {}
    facts = {"operation": operation, "operationParameters": parameters, "engineInfo": f"penstock:{__version__}"}
    info = {"commitInfo": {"timestamp": _now(), **facts, "txnId": new_ulid()}}
    return b"".join(orjson.dumps(action) + b"\n" for action in (info, *actions))


def _is_there(lake: Lake, path: str, entry: bytes) -> bool:
    """Whether the log has this entry: a request that is repeated after a lost response finds its own."""
    try:
        return lake.read(path) == entry
    except LakeObjectMissing:
        return False


def _lost(table: str) -> LeaseLost:
    return LeaseLost(f"table {table} was changed by another process since we opened it: run again")


def _now() -> int:
    return int(time.time() * 1000)

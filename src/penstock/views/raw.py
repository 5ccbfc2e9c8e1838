"""Documents of the raw sink: runs with their seals, rows, and deleted runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.partition import AttemptKey, PartitionKey
    from penstock.raw.reader import RawRun


def raw_runs_document(key: PartitionKey, found: Sequence[RawRun], authoritative: str | None) -> Document:
    """Every run of a partition in the raw sink, with its seal or the error that makes it unreadable."""
    return listing([_raw_run(key, run, authoritative) for run in found], len(found))


def raw_rows_document(lines: Iterable[bytes]) -> Document:
    """The rows of a raw run; each line is one JSON document."""
    import orjson

    items = [orjson.loads(line) for line in lines]
    return listing(items, len(items))


def garbage_document(found: Sequence[AttemptKey]) -> Document:
    """The raw runs that a deletion would remove."""
    items = [{**partition_fields(attempt.partition), "run_id": attempt.run_id} for attempt in found]
    return Document({**listing(items, len(items)), "dry_run": True})


def deleted_runs_document(runs: int, files: int) -> Document:
    """The number of raw runs and files that were deleted."""
    return Document({"deleted": runs, "files": files, "dry_run": False})


def _raw_run(key: PartitionKey, run: RawRun, authoritative: str | None) -> dict[str, Any]:
    from penstock.raw.seal import Seal

    seal = run.seal if isinstance(run.seal, Seal) else None
    return {
        **partition_fields(key),
        "run_id": run.attempt.run_id,
        "sealed": seal is not None,
        "record_count": seal.record_count if seal else None,
        "payload_bytes": seal.payload_bytes if seal else None,
        "payload_sha256": seal.payload_sha256 if seal else None,
        "extracted_at": seal.extracted_at if seal else None,
        "schema_version": seal.schema_version if seal else None,
        "authoritative": run.attempt.run_id == authoritative,
        "error": str(run.seal) if run.seal is not None and seal is None else None,
    }

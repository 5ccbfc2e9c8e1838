"""Documents of the warehouse: pointers, loads, reconciliation, maintenance, verification and snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing, page
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.pipeline.verify import Verification
    from penstock.warehouse.compare import Difference
    from penstock.warehouse.mismatch import Mismatch
    from penstock.warehouse.pointers import LoadRecord, Pointer
    from penstock.warehouse.publish import Compaction, Publication
    from penstock.warehouse.snapshots import Snapshot


def mismatch_items(found: Sequence[Mismatch]) -> list[dict[str, Any]]:
    """The disagreements between the lake and the state database, as every document lists them."""
    return [{"kind": one.kind, "table": one.table, "message": one.message} for one in found]


def mismatches_document(found: Sequence[Mismatch]) -> Document:
    return listing(mismatch_items(found), len(found))


def pointers_document(found: Sequence[Pointer], total: int, following: str | None) -> Document:
    """One page of pointers: the run that the warehouse serves for each partition."""
    items = [
        {
            **partition_fields(pointer.key),
            "run_id": pointer.run_id,
            "schema_version": pointer.schema_version,
            "available": pointer.available,
            "table": pointer.table,
            "table_version": pointer.table_version,
            "loaded_at": pointer.loaded_at,
            "record_count": pointer.record_count,
        }
        for pointer in found
    ]
    return page(items, total, following)


def loads_document(found: Sequence[LoadRecord], total: int, following: str | None) -> Document:
    """One page of load records."""
    items = [
        {
            **partition_fields(load.key),
            "run_id": load.run_id,
            "schema_version": load.schema_version,
            "record_count": load.record_count,
            "loaded_at": load.loaded_at,
            "table": load.table,
        }
        for load in found
    ]
    return page(items, total, following)


def reconcile_document(
    found: Sequence[Difference],
    counts: Mapping[str, int],
    mismatches: Sequence[Mismatch],
    *,
    dry_run: bool,
    published: Publication | None,
) -> Document:
    """The differences between authority and pointers, and the result of their publication unless `dry_run`."""
    items = [
        {
            **partition_fields(one.key),
            "act": one.act,
            "run_id": one.run_id,
            "schema_version": one.schema_version,
            "served_run_id": one.served_run_id,
            "served_schema_version": one.served_schema_version,
        }
        for one in found
    ]
    document = {
        **listing(items, sum(counts.values())),
        "counts": counts,
        "mismatches": mismatch_items(mismatches),
        "dry_run": dry_run,
    }
    if not dry_run:
        document["loaded"] = published.loaded if published else 0
        document["hidden"] = published.hidden if published else 0
        document["broken"] = {str(key): reason for key, reason in published.broken.items()} if published else {}
    return Document(document)


def compact_document(done: Sequence[Compaction], *, dry_run: bool) -> Document:
    """The number of small files of each table before and after compaction."""
    items = [{"table": one.table, "files_before": one.before, "files_after": one.after} for one in done]
    return Document({**listing(items, len(items)), "dry_run": dry_run})


def vacuum_document(found: Mapping[str, Sequence[str]], *, dry_run: bool) -> Document:
    """The data files of each table that are deleted."""
    items = [{"table": name, "files": paths} for name, paths in found.items()]
    return Document(
        {**listing(items, len(items)), "files": sum(len(paths) for paths in found.values()), "dry_run": dry_run}
    )


def verify_document(done: Verification, mismatches: Sequence[Mismatch]) -> Document:
    """The partitions and files whose content differs from pointers, verdicts, raw data and the Delta log."""
    items = [{**partition_fields(key), "problems": problems} for key, problems in sorted(done.wrong.items())]
    files = [
        {"table": name, "path": path, "problems": problems} for (name, path), problems in sorted(done.files.items())
    ]
    return Document(
        {
            **listing(items, len(items)),
            "partitions": done.partitions,
            "rows": done.rows,
            "payloads": done.payloads,
            "files": files,
            "mismatches": mismatch_items(mismatches),
        }
    )


def snapshots_document(found: Sequence[Snapshot]) -> Document:
    """The snapshots that can be read."""
    items = [{"snapshot": one.name, "created_at": one.created_at, "expires_at": one.expires_at} for one in found]
    return listing(items, len(items))


def snapshot_document(found: Snapshot) -> Document:
    """One snapshot with the version of each table."""
    return Document(
        {
            "snapshot": found.name,
            "created_at": found.created_at,
            "expires_at": found.expires_at,
            "tables": [{"table": head.name, "version": head.version} for _, head in found.tables],
        }
    )

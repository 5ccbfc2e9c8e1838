"""Documents of operators' changes: retries, marks, authority, re-checks, breakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.control.requeue import RetryPreview
    from penstock.flow.recheck import Rechecked
    from penstock.partition import PartitionKey
    from penstock.state.records import Breaker


def retry_document(found: RetryPreview, *, requeued: int, dry_run: bool) -> Document:
    """The failed partitions that are requeued, and those that are refused by reason."""
    return Document(
        {
            **_keys(found.keys, found.total),
            "requeued": requeued,
            "dry_run": dry_run,
            **_refusals(found),
        }
    )


def retry_failed_document(found: RetryPreview, *, dry_run: bool, backfill_id: str | None) -> Document:
    """The failed partitions of a backfill. `backfill_id` names the backfill that retries them, if there is one."""
    document = {**_keys(found.keys, found.total), "dry_run": dry_run, **_refusals(found)}
    return Document(document if backfill_id is None else {**document, "backfill_id": backfill_id})


def marks_document(keys: Sequence[PartitionKey], total: int, *, changed: int, dry_run: bool) -> Document:
    """The first partitions of a change to marks, and how many partitions changed."""
    return Document({**_keys(keys, total), "changed": changed, "dry_run": dry_run})


def authority_document(key: PartitionKey, *, changed: bool, dry_run: bool) -> Document:
    """A change to the authority of one partition."""
    return Document({**partition_fields(key), "changed": int(changed), "dry_run": dry_run})


def recheck_preview_document(keys: Sequence[PartitionKey]) -> Document:
    """The partitions whose authoritative runs a re-check examines."""
    return Document({**_keys(keys, len(keys)), "examined": 0, "dry_run": True})


def recheck_document(found: Rechecked) -> Document:
    """The partitions that a re-check demoted, and those whose raw data it could not read."""
    return Document(
        {
            **listing(_messages(found.demoted), len(found.demoted)),
            "examined": found.examined,
            "unreadable": _messages(found.unreadable),
            "dry_run": False,
        }
    )


def breakers_document(found: Sequence[Breaker]) -> Document:
    """The circuit breaker of each source."""
    from dataclasses import asdict

    items = [{**asdict(breaker), "open": breaker.opened_at is not None} for breaker in found]
    return listing(items, len(items))


def close_breaker_document(source: str, *, changed: bool, dry_run: bool) -> Document:
    return Document({"source": source, "changed": int(changed), "dry_run": dry_run})


def _keys(keys: Sequence[PartitionKey], total: int) -> Document:
    return listing([partition_fields(key) for key in keys], total)


def _messages(found: Mapping[PartitionKey, str]) -> list[dict[str, Any]]:
    return [{**partition_fields(key), "message": message} for key, message in found.items()]


def _refusals(found: RetryPreview) -> dict[str, Any]:
    from penstock.control.requeue import NotRetried

    return {
        "refused": [str(key) for key in found.refused[NotRetried.NO_RAW]],
        "terminal": [str(key) for key in found.refused[NotRetried.TERMINAL]],
        "frozen": [str(key) for key in found.refused[NotRetried.FROZEN]],
        "refusals": {str(reason): count for reason, count in found.refusals.items()},
    }

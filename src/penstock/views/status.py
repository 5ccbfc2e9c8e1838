"""Documents of `penstock status`: the number of partitions by display status, and the status of each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing
from penstock.views.partitions import partition_fields
from penstock.views.quota import low_quota_items
from penstock.views.warehouse import mismatch_items

if TYPE_CHECKING:
    from penstock.projections.status_board import PartitionStanding
    from penstock.state.quota import SourceQuota
    from penstock.warehouse.mismatch import Mismatch


def status_document(
    groups: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    flags: Mapping[str, int],
    publish_due: int,
    provisional: int,
    source_errors: Sequence[str],
    mismatches: Sequence[Mismatch],
    unfinished: Sequence[str],
    quota: Sequence[SourceQuota] = (),
    quota_reserve: float = 0.0,
) -> Document:
    """The number of partitions by group and display status. `rows` has the columns in `groups`, `display` and `n`."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["display"]] = counts.get(row["display"], 0) + row["n"]
    items = [{**{g: row[g] for g in groups}, "display_status": row["display"], "count": row["n"]} for row in rows]
    return Document(
        {
            "counts": counts,
            "items": items,
            "total": sum(counts.values()),
            "flags": flags,
            "publish_due": publish_due,
            "provisional": provisional,
            "troubles": source_errors,
            "mismatches": mismatch_items(mismatches),
            "unfinished": unfinished,
            "quota": low_quota_items(quota, quota_reserve),
        }
    )


def grid_document(found: Sequence[PartitionStanding]) -> Document:
    """The display status of each partition, and the number of partitions by display status."""
    items = [{**partition_fields(one.key), "display_status": one.display, "flags": one.flags} for one in found]
    counts = dict(Counter(str(one.display) for one in found))
    return Document({"counts": counts, **listing(items, len(found))})

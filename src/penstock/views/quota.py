"""Documents of request quotas: every limit of every source, and the windows of which little is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from penstock.config.settings import SourceSettings
    from penstock.state.quota import QuotaWindow, SourceQuota
    from penstock.state.shares import Share


def quota_document(
    sources: Iterable[SourceSettings],
    quotas: Sequence[SourceQuota],
    shares: Mapping[str, Sequence[Share]],
    reserve: float,
) -> Document:
    """Each limit of each source. A limit by hour or day has counts, a limit by second or minute has shares."""
    windows = {(window.source, window.window): window for quota in quotas for window in quota.windows}
    items = []
    for source in sources:
        for limit in source.rate:
            window = windows.get((source.name, limit.window))
            if window is not None:
                items.append({**_counts(window, reserve), "shares": []})
                continue
            item: dict[str, Any] = {"source": source.name, "window": limit.window.value, "budget": limit.requests}
            item |= dict.fromkeys(("claimed", "used", "left", "reserve", "renews_at"))
            items.append({**item, "shares": [_share(one) for one in shares.get(source.name, ())]})
    return listing(items, len(items))


def low_quota_items(quotas: Sequence[SourceQuota], reserve: float) -> list[dict[str, Any]]:
    """The windows of which no more than the reserve for fresh data is left, each with its message."""
    from penstock.control.quota import low

    return [
        {**_counts(window, reserve), "message": window.remaining} for quota in quotas for window in low(quota, reserve)
    ]


def _counts(window: QuotaWindow, reserve: float) -> dict[str, Any]:
    return {
        "source": window.source,
        "window": window.window.value,
        "budget": window.budget,
        "claimed": window.claimed,
        "used": window.used,
        "left": window.left(),
        "reserve": window.reserved(reserve),
        "renews_at": window.renews_at,
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "worker": share.worker_token,
        "host": share.host,
        "process": share.process.partition(":")[0],
        "per_second": share.per_second,
    }

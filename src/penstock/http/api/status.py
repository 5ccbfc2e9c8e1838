"""The number of partitions by display status."""

from __future__ import annotations

from penstock.errors import UsageError
from penstock.http.calls import Call
from penstock.http.parameters import FILTERS, Parameter
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.partitions import StatusDocument
from penstock.views.document import Document

_GROUPS = ("query", "customer", "date", "month", "source")
_BY = Parameter(
    "by",
    f"Group by one or several, separated by commas: {', '.join(_GROUPS)}. Default: query. At most 100,000 groups.",
)


def count_status(call: Call) -> Document:
    """Count the expected partitions by display status."""
    from penstock.views.status import status_document

    ws, chosen = call.workspace, call.selection
    groups = [name.strip() for name in (call.query["by"] or "query").split(",") if name.strip()]
    if unknown := [name for name in groups if name not in _GROUPS]:
        raise UsageError(f"cannot group by {', '.join(unknown)}: use {', '.join(_GROUPS)}")
    if len(set(groups)) < len(groups):
        raise UsageError("name each group once")
    rows, flags = ws.grids.counts(chosen, groups)
    return status_document(
        groups,
        rows,
        flags=flags,
        publish_due=ws.context.pointers.waiting(),
        provisional=ws.partitions.provisional_count(chosen),
        source_errors=[*ws.partitions.source_errors(), *ws.context.unreadable_models.values()],
        mismatches=ws.context.mismatches(),
        unfinished=ws.partitions.unfinished_runs(),
        quota=ws.quotas.sources(),
        quota_reserve=ws.settings.control.quota_reserve,
    )


ROUTES = (
    Route(
        "GET",
        f"{PREFIX}/status",
        count_status,
        Access.VIEWER,
        StatusDocument,
        "Count partitions by display status",
        (*FILTERS, _BY),
    ),
)

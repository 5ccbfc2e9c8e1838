"""Request quotas: the limits of sources, what is left of them, and who shares a rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.state.quota import SourceQuota
    from penstock.state.shares import Share


class QuotaService:
    """Answers questions about the request limits of sources. It changes nothing."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def sources(self) -> Sequence[SourceQuota]:
        """The counted quotas of all sources that have one, in the present windows.

        >>> {quota.source: quota.left() for quota in ws.quotas.sources()}
        """
        guard = self._context.guard(by_hand=False)
        found = (guard.quota(name) for name in self._context.settings.sources)
        return [quota for quota in found if quota is not None]

    def shares(self, source: str) -> Sequence[Share]:
        """The shares of live workers in the rate of a source; empty for a database role that may not read workers.

        >>> ws.quotas.shares("google_ads")
        """
        try:
            return self._context.shares.live(source)
        except PenstockError:
            return []

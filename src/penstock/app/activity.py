"""Live view of the work in progress, from the state database alone."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.app.context import Context

if TYPE_CHECKING:
    from penstock.state.activity import Activity

WINDOW = timedelta(minutes=10)  # of recent errors and rates


class ActivityService:
    """Answers what is going on now. It changes nothing and needs no Spark."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def now(self) -> Activity:
        """Runs in progress or ended in the last ten minutes with their stages, recent errors, quotas, orders and
        workers: one snapshot.

        >>> [run.run_id for run in ws.activity.now().runs]
        """
        from penstock.state.activity import ActivityReader

        limits = {name: source.quotas for name, source in self._context.settings.sources.items()}
        return ActivityReader(self._context.database).read(self._context.now(), WINDOW, limits)

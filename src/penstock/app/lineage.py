"""Lineage of runs as OpenLineage events."""

from __future__ import annotations

import logging

from penstock.app.context import Context
from penstock.errors import PenstockError, UsageError
from penstock.partition import RunId

log = logging.getLogger(__name__)


class LineageService:
    """Writes the inputs and outputs of runs to the place that the workspace file names."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def emit(self, run_id: RunId) -> int:
        """Write the inputs and outputs of a run as OpenLineage events. Returns their number. A repeated call writes
        equal events, which consumers ignore.

        >>> ws.lineage.emit(ws.runs.start().run_id)
        """
        from penstock.observe.lineage import emit, require_openlineage, run_events
        from penstock.state.assets import assets_of_run
        from penstock.warehouse.heads import heads_of_all

        if self._context.settings.lineage is None:
            raise UsageError("the workspace file has no `lineage:`: write lineage: {file: lineage.jsonl}")
        self._context.run_filters(run_id)  # refuses an unknown run
        require_openlineage()
        assets = assets_of_run(self._context.database, run_id)
        kept = self._context.stored_contracts()
        names = sorted({(asset.source, asset.query_name) for asset in assets})
        heads = {head.name: head for _, head in heads_of_all(self._context.database, names)}
        emit(
            self._context.settings.lineage,
            run_events(self._context.settings, run_id, assets, kept, heads, self._context.lake.url),
        )
        return len(assets)

    def emit_or_log(self, run_id: RunId) -> None:
        """Emit lineage at the end of a run, if the workspace file configures it. An error is logged and not raised:
        `penstock lineage emit` repeats it."""
        if self._context.settings.lineage is None:
            return
        try:
            self.emit(run_id)
        except PenstockError as error:
            facts = {"run_id": run_id, "error": str(error), "remedy": f"penstock lineage emit {run_id}"}
            log.warning("lineage.behind", extra={"facts": facts})

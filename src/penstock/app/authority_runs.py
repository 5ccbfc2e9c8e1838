"""The runs of a partition that an operator may give authority to."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.app.context import Context
from penstock.lifecycle import Act
from penstock.partition import AssetKind, RunId
from penstock.state.authority import AuthorityRequest, refusal
from penstock.state.records import Attempt, PartitionView
from penstock.warehouse.withdrawn import demoted_inputs


def rollback_runs(context: Context, view: PartitionView, attempts: Sequence[Attempt]) -> list[RunId]:
    """The runs to which a rollback is not refused now, newest first, without the trusted one."""
    by_run = {str(attempt.run_id): attempt for attempt in attempts}
    found = []
    with context.database.snapshot() as connection:
        for attempt in attempts:
            if not view.explicit or not attempt.was_trusted or attempt.run_id == view.state.current_run_id:
                continue
            derived = view.key.kind is AssetKind.DERIVED
            demoted = demoted_inputs(connection, view.key, attempt.run_id) if derived else ()
            request = AuthorityRequest(view.key, Act.ROLLBACK, view.state, attempt, by_run, demoted)
            if refusal(request) is None:
                found.append(attempt.run_id)
    return found

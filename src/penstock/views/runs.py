"""Documents of runs: the summary of a run, its tasks, and its cancellation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.flow.summary import Failure, RunSummary
    from penstock.partition import PartitionKey
    from penstock.projections.run_page import RunPage


def run_document(summary: RunSummary) -> Document:
    """The result of a run: counts, failures, cancelled partitions, and what waits."""
    return Document(
        {
            "run_id": summary.run_id,
            "runs": summary.runs,
            **summary.counts(),
            "warnings": summary.warnings,
            "end": summary.end,
            "blocked": summary.blocked,
            "seconds": summary.seconds,
            "failures": _failures(summary.failures),
            "cancelled_items": _failures(summary.cancelled_items),
            "troubles": summary.problems,
            "requests_in_flight": summary.in_flight,
            "waiting": summary.waiting,
            "unfinished": summary.unfinished,
        }
    )


def run_tasks_document(found: RunPage) -> Document:
    """One run: its tasks by stage and state, the failed ones, the edges that block others, and its trace if it was
    traced."""
    return Document(
        {
            **found.run,
            **({"trace_id": found.trace_id} if found.trace_id else {}),
            "stages": found.stages,
            "failed": found.failed,
            "blocked": found.blocked,
            "kept": found.kept,
        }
    )


def cancel_document(run_id: str, *, is_running: bool, dry_run: bool, open_keys: Sequence[PartitionKey]) -> Document:
    """The request to cancel a run. A preview names the partitions whose attempts the run would close."""
    document = {"run_id": run_id, "requested": is_running and not dry_run, "dry_run": dry_run}
    if dry_run:
        keys = listing([partition_fields(key) for key in open_keys], len(open_keys))
        document |= {"would_cancel": is_running, **keys}
    return Document(document)


def round_document(facts: Mapping[str, Any], held_up: Mapping[str, int] | None = None) -> Document:
    """The result of one round of the control loop. `held_up` counts the partitions that wait, by reason."""
    return Document({**facts} if held_up is None else {**facts, "held_up": held_up})


def lineage_document(run_id: str, events: int, where: str) -> Document:
    """The number of OpenLineage events of a run, and where they were sent."""
    return Document({"run_id": run_id, "events": events, "where": where})


def _failures(found: Sequence[Failure]) -> list[dict[str, Any]]:
    return [{"key": str(f.key), "stage": f.stage, "error_class": f.error_class, "message": f.message} for f in found]

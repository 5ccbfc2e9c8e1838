"""Finds reprocess runs that were killed: their accepted partitions are not due, so no other run continues them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ledger.read import LedgerReader
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId
from penstock.plural import counted
from penstock.state.reader import StateReader

_REPORTED = ("abandoned", "broken")  # a cancelled run ended on purpose


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that ended, with the planned partitions that have no verdict of it or of a later attempt."""

    run_id: RunId
    planned: int
    keys: tuple[PartitionKey, ...]

    @property
    def message(self) -> str:
        return (
            f"run {self.run_id} (reprocess, {len(self.keys):,} of {counted(self.planned)} not done) was killed:"
            f" `penstock runs resume {self.run_id}` continues it, `penstock runs cancel {self.run_id}` discards it"
        )


def unfinished_runs(reader: StateReader, ledger: LedgerReader) -> list[Unfinished]:
    """Killed runs with `--reprocess` that were neither resumed nor cancelled and have partitions left, oldest first."""
    rows = reader.ended_reprocess_runs()
    resumed = {row.filters.get("resumes") for row in rows}
    found = []
    for row in rows:
        if row.run_id in resumed or row.cancelled or row.payload.get("end") not in _REPORTED:
            continue
        keys = left_of(reader, ledger, RunId(row.run_id))
        if keys:
            found.append(Unfinished(RunId(row.run_id), row.planned, tuple(keys)))
    return found


def left_of(reader: StateReader, ledger: LedgerReader, run_id: RunId) -> list[PartitionKey]:
    """The planned partitions of a run that have no verdict of it or of a later attempt."""
    from penstock.projections import task_states
    from penstock.projections.runs import FoldedRun

    row = reader.run(run_id)
    if row is None:
        return []
    fold = FoldedRun.of(ledger.of_run(run_id)).fold
    before = len(f"{Stage.VALIDATE}:")
    planned = [PartitionKey.parse(task[before:]) for task in fold.tasks_in(task_states.CANCELLED, Stage.VALIDATE)]
    return sorted(set(planned) - reader.judged_since(row.started_at)) if planned else []

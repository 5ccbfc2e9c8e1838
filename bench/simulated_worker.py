"""A worker without data: it opens attempts and judges them through the stores of a run, and accesses no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count

from penstock.app import Workspace
from penstock.errors import ErrorClass
from penstock.lifecycle import Stage
from penstock.partition import AttemptKey, new_run_id
from penstock.state.control import ControlStore
from penstock.state.records import Accepted, Planned, Rejected, Verdict
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore


class SimulatedWorker:
    """One run of one worker. A partition that another run holds is an error: there is no other run."""

    def __init__(self, workspace: Workspace) -> None:
        database, clock = workspace.context.database, workspace.context.now
        self._control, self._validator = ControlStore(database, clock), ValidatorStore(database, clock)
        self.token, self._run_id, self._batches = WorkerStore(database, clock).register(), new_run_id(), count()
        self._control.store_contracts(
            [
                (c.fingerprint, c.source, c.query_name, c.schema_version, c.body())
                for c in workspace.context.contracts.values()
            ]
        )

    def issue(self, planned: Sequence[Planned]) -> list[AttemptKey]:
        issued, refused = self._control.issue(self._run_id, self.token, next(self._batches), planned)
        if refused:
            raise RuntimeError(f"{len(refused)} partitions were not issued, the first: {refused[0]}")
        return [item.attempt for item in issued]

    def judge(self, verdicts: Sequence[Verdict]) -> None:
        ruling = self._validator.judge(verdicts)
        if len(ruling.applied) != len(verdicts):
            raise RuntimeError(f"of {len(verdicts)} verdicts {len(ruling.applied)} were applied")

    def accepted(self, attempt: AttemptKey) -> Accepted:
        digest = sha256(str(attempt).encode()).hexdigest()
        return Accepted(attempt, self.token, "v1", 100, digest, 12_000, digest)

    def rejected(self, attempt: AttemptKey) -> Rejected:
        """A refusal of the source, which the retry policy takes up."""
        return Rejected(attempt, self.token, Stage.EXTRACT, ErrorClass.TRANSIENT, "the source did not answer: 503")

    def fill(self, planned: Sequence[Planned], batch: int) -> None:
        """State for all of these: one in ten is failed, the others are success."""
        for items in batches(planned, batch):
            attempts = self.issue(items)
            self.judge([self.accepted(a) if n % 10 else self.rejected(a) for n, a in enumerate(attempts)])


def batches(planned: Sequence[Planned], size: int) -> Iterator[Sequence[Planned]]:
    return (planned[start : start + size] for start in range(0, len(planned), size))

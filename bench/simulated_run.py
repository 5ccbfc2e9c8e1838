"""A run without data: the stores, the ledger, the publisher and the projections of a real run, in its order.
Extraction and validation return constants, and staging writes no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from bench.measure import Stopwatch
from penstock.app import Workspace
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema
from penstock.errors import ErrorClass
from penstock.flow.graph import Graph
from penstock.flow.run_state import RunState
from penstock.ledger.events import SlicesExtracted, TaskStarted
from penstock.lifecycle import Stage
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id, new_ulid
from penstock.partition_set import compact_ranges
from penstock.pipeline.memory import release_memory
from penstock.state.records import Accepted, Issued, Planned, Rejected, Verdict
from penstock.warehouse.format import FileStatistics, StagedFile, table_format
from penstock.warehouse.layout import MONTH, SortKey
from penstock.warehouse.publish import Publisher
from penstock.warehouse.staging import PartStaged, StagePart

BATCH = 10_000  # partitions that a run issues, judges and publishes together
ROWS, PAYLOAD_BYTES = 100, 12_000
REJECTED = 100  # one partition in so many is rejected
PARTS = ("plan", "start run", "issue", "record events", "fold run", "judge", "publish", "project", "schedule retries")


class SimulatedStager:
    """Returns the files that staging would write, with sizes and bounds, and writes none of them."""

    def __init__(self, workspace: Workspace) -> None:
        self._format = table_format(workspace.context.lake)
        self._held: dict[str, tuple[int, list[SortKey]]] = {}  # rows and bounds of each file that was staged

    def __call__(self, parts: Sequence[StagePart], _contracts: Mapping[PartitionKey, str]) -> list[PartStaged]:
        return [PartStaged((self._staged(part),), {}) for part in parts]

    def _staged(self, work: StagePart) -> StagedFile:
        """One file. The rows of a rewritten file count for the first part that reads it."""
        part = work.part
        old = [self._held.pop(path) for path in part.files if path in self._held]
        rows = sum(new.record_count for new in part.slices) + sum(held for held, _ in old)
        keys = [new.sort_key for new in part.slices] + [key for _, bounds in old for key in bounds]
        days, customers = sorted(day for day, _ in keys), sorted(customer for _, customer in keys)
        bounds = FileStatistics(rows, (days[0], days[-1]), (customers[0], customers[-1]))
        path = f"{MONTH}={part.month}/part-{new_ulid()}.parquet"
        self._held[path] = rows, [(days[0], customers[0]), (days[-1], customers[-1])]
        return StagedFile(path, part.weight, rows, part.month, self._format.encode_statistics(bounds))


class SimulatedRuns:
    """Executes plans one after the other, as one worker, and measures the seconds of each part."""

    def __init__(self, workspace: Workspace, worker_token: str, watch: Stopwatch) -> None:
        self._workspace, self._token, self._watch = workspace, worker_token, watch
        context = workspace.context
        self._control, self._validator = context.control, context.validators
        contracts = list(context.contracts.values())
        self._control.store_contracts([_contract_row(contract) for contract in contracts])
        fields = {contract.table: arrow_schema(contract.columns) for contract in contracts}
        stager = SimulatedStager(workspace)
        self._publisher = Publisher(
            context.database, context.lake, context.clock, worker_token, fields.__getitem__, stager, workers=2
        )

    def run(self, plan: Sequence[Planned]) -> None:
        """One run: every partition is issued, judged and published. Raises RuntimeError if one is not."""
        run_id, watch, keys = new_run_id(), self._watch, [item.key for item in plan]
        watch.begin("start run")
        self._control.start_run(run_id, self._token, "bench", {}, len(plan), Graph(keys).event(run_id))
        state = RunState(run_id, self._workspace.context.ledger.news_of_run)
        counts = {"accepted": 0, "rejected": 0, "loaded": 0}
        for items in _batches(plan):
            self._batch(run_id, items, state, counts)
        watch.begin("record events")
        self._control.finish_run(run_id, self._token, counts)
        release_memory()
        watch.begin("project")
        self._workspace.status.projector.advance({run_id: state.folded})
        release_memory()
        watch.begin("schedule retries")
        self._workspace.runners.schedule_retries()
        watch.end()
        if counts["accepted"] + counts["rejected"] != len(plan) or counts["loaded"] != counts["accepted"]:
            raise RuntimeError(f"the run of {len(plan)} partitions ended with {counts}")

    def _batch(self, run_id: RunId, items: Sequence[Planned], state: RunState, counts: dict[str, int]) -> None:
        watch = self._watch
        self._ready(state, Stage.EXTRACT)
        watch.begin("issue")
        issued, refused = self._control.issue(run_id, self._token, new_ulid(), items)
        if refused:
            raise RuntimeError(f"{len(refused)} partitions were not issued, the first: {refused[0]}")
        slices = compact_ranges(item.attempt.partition for item in issued)
        watch.begin("record events")
        self._control.record_event(run_id, self._token, SlicesExtracted(run_id, slices, 1, new_ulid()))
        self._ready(state, Stage.VALIDATE)
        self._started(run_id, Stage.VALIDATE, issued)
        verdicts = [self._verdict(item.attempt, number) for number, item in enumerate(issued)]
        watch.begin("judge")
        applied = len(self._validator.judge(verdicts).applied)
        if applied != len(verdicts):
            raise RuntimeError(f"of {len(verdicts)} verdicts {applied} were applied")
        accepted = [verdict for verdict in verdicts if isinstance(verdict, Accepted)]
        self._ready(state, Stage.LOAD)
        self._started(run_id, Stage.LOAD, accepted)
        watch.begin("publish")
        counts["loaded"] += self._publisher.publish(run_id).loaded
        counts["accepted"] += len(accepted)
        counts["rejected"] += len(verdicts) - len(accepted)

    def _ready(self, state: RunState, stage: Stage) -> None:
        self._watch.begin("fold run")
        state.refresh()
        if not state.ready(stage):
            raise RuntimeError(f"no task of the stage {stage} is ready")

    def _started(self, run_id: RunId, stage: Stage, items: Sequence[Issued | Accepted]) -> None:
        self._watch.begin("record events")
        slices = compact_ranges(item.attempt.partition for item in items)
        self._control.record_event(run_id, self._token, TaskStarted(run_id, stage, slices, 1, new_ulid()))
        self._watch.end()

    def _verdict(self, attempt: AttemptKey, number: int) -> Verdict:
        if number % REJECTED == 0:
            reason = "clicks <= impressions: 3 rows, first at line 7"
            return Rejected(attempt, self._token, Stage.VALIDATE, ErrorClass.DATA, reason)
        digest = sha256(str(attempt).encode()).hexdigest()
        return Accepted(attempt, self._token, "v1", ROWS, digest, PAYLOAD_BYTES, digest)


def _contract_row(contract: Contract) -> tuple[str, str, str, str, Mapping[str, object]]:
    return contract.fingerprint, contract.source, contract.query_name, contract.schema_version, contract.body()


def _batches(plan: Sequence[Planned]) -> Iterator[Sequence[Planned]]:
    return (plan[start : start + BATCH] for start in range(0, len(plan), BATCH))

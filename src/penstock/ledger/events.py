"""The event types of the ledger. Each event has an idempotency key, under which it is recorded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.partition import PartitionKey, RunId
from penstock.partition_set import CompactRanges


@dataclass(frozen=True, slots=True)
class PlanCreated:
    """A run got tasks and the edges between them. Chains are partitions that go through the same stages; a group is a
    set of upstream tasks with the rule by which it is complete."""

    type: ClassVar[str] = "PlanCreated"
    version: ClassVar[int] = 1

    run_id: RunId
    part: int
    chains: Sequence[Mapping[str, Any]] = ()
    tasks: Sequence[str] = ()
    edges: Sequence[Sequence[str]] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}/{self.part}"

    def payload(self) -> dict[str, Any]:
        present = {"chains": self.chains, "tasks": self.tasks, "edges": self.edges, "groups": self.groups}
        return {
            "part": self.part,
            "reasons": dict(self.reasons),
            **{name: found for name, found in present.items() if found},
        }


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """Tasks of one stage were dispatched together, for the n-th time."""

    type: ClassVar[str] = "TaskStarted"
    version: ClassVar[int] = 1

    run_id: RunId
    stage: str
    slices: CompactRanges
    attempt: int
    dispatch: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}/{self.dispatch}"

    def payload(self) -> dict[str, Any]:
        return {"stage": self.stage, "slices": self.slices, "try": self.attempt}


@dataclass(frozen=True, slots=True)
class SlicesExtracted:
    """These partitions were fetched and sealed."""

    type: ClassVar[str] = "SlicesExtracted"
    version: ClassVar[int] = 1

    run_id: RunId
    slices: CompactRanges
    attempt: int
    dispatch: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}/{self.dispatch}"

    def payload(self) -> dict[str, Any]:
        return {"slices": self.slices, "try": self.attempt}


@dataclass(frozen=True, slots=True)
class SlicesUnchanged:
    """Nothing had to be done for these partitions: their inputs are those of the trusted run."""

    type: ClassVar[str] = "SlicesUnchanged"
    version: ClassVar[int] = 1

    run_id: RunId
    slices: CompactRanges
    attempt: int
    dispatch: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}/{self.dispatch}"

    def payload(self) -> dict[str, Any]:
        return {"slices": self.slices, "try": self.attempt}


@dataclass(frozen=True, slots=True)
class TasksDropped:
    """Tasks were given up before they started: another run was first, the source fails as a whole, or Spark refuses a
    check of the query."""

    type: ClassVar[str] = "TasksDropped"
    version: ClassVar[int] = 1

    run_id: RunId
    stage: str
    slices: CompactRanges
    attempt: int
    why: str
    dispatch: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}/{self.dispatch}"

    def payload(self) -> dict[str, Any]:
        return {"stage": self.stage, "slices": self.slices, "try": self.attempt, "why": self.why}


@dataclass(frozen=True, slots=True)
class LoadsFailed:
    """Accepted partitions cannot be published: their validated data is missing. Authority does not change. The first
    publication of such a partition, by any run, still ends its load."""

    type: ClassVar[str] = "LoadsFailed"
    version: ClassVar[int] = 1

    run_id: RunId
    slices: CompactRanges
    attempt: int
    error_class: str
    why: str
    dispatch: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}/{self.dispatch}"

    def payload(self) -> dict[str, Any]:
        return {
            "slices": self.slices,
            "try": self.attempt,
            "error_class": self.error_class,
            "why": self.why,
            "final": True,
        }


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A task ended, and its attempt was closed: by a verdict, or cancelled without one."""

    type: ClassVar[str] = "TaskFinished"
    version: ClassVar[int] = 1

    run_id: RunId
    partition: PartitionKey
    attempt_no: int
    stage: str
    outcome: str
    error_class: str | None
    code_version: str
    record_count: int | None
    attempt: int = 1
    consumed: int = 0  # number of input runs; `attempt_input` lists them

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.partition}/{self.run_id}"

    def payload(self) -> dict[str, Any]:
        return {
            "asset_key": self.partition.asset,
            "partition_key": str(self.partition),
            "attempt_no": self.attempt_no,
            "stage": self.stage,
            "outcome": self.outcome,
            "error_class": self.error_class,
            "code_version": self.code_version,
            "record_count": self.record_count,
            "try": self.attempt,
            "final": True,
            "closes": True,
            "consumed": self.consumed,
        }


@dataclass(frozen=True, slots=True)
class AuthorityChanged:
    """Another run is trusted, or none is any more."""

    type: ClassVar[str] = "AuthorityChanged"
    version: ClassVar[int] = 1

    run_id: RunId
    partition: PartitionKey
    authority_version: int
    act: str
    code_version: str | None = None  # of the run that is trusted now
    content_digest: str | None = None

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.partition}/{self.authority_version}"

    def payload(self) -> dict[str, Any]:
        return {
            "asset_key": self.partition.asset,
            "partition_key": str(self.partition),
            "authority_version": self.authority_version,
            "act": self.act,
            "code_version": self.code_version,
            "content_digest": self.content_digest,
        }


@dataclass(frozen=True, slots=True)
class AttemptRefused:
    """A verdict came too late, or for an attempt that was never issued: it changed nothing."""

    type: ClassVar[str] = "AttemptRefused"
    version: ClassVar[int] = 1

    run_id: RunId
    partition: PartitionKey
    outcome: str
    why: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.partition}/{self.run_id}/{self.outcome}/{self.why}"

    def payload(self) -> dict[str, Any]:
        return {"partition_key": str(self.partition), "outcome": self.outcome, "why": self.why}


@dataclass(frozen=True, slots=True)
class PartitionPublished:
    """Readers see this run from now on."""

    type: ClassVar[str] = "PartitionPublished"
    version: ClassVar[int] = 1

    run_id: RunId
    partition: PartitionKey
    batch_id: str
    table: str
    table_version: int
    record_count: int

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.partition}/{self.batch_id}"

    def payload(self) -> dict[str, Any]:
        return {
            "asset_key": self.partition.asset,
            "partition_key": str(self.partition),
            "batch_id": self.batch_id,
            "table": self.table,
            "table_version": self.table_version,
            "record_count": self.record_count,
        }


@dataclass(frozen=True, slots=True)
class PartitionHidden:
    """The rows of the partition left the warehouse table; readers stopped seeing them before."""

    type: ClassVar[str] = "PartitionHidden"
    version: ClassVar[int] = 1

    partition: PartitionKey
    batch_id: str
    run_id: None = None

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.partition}/{self.batch_id}"

    def payload(self) -> dict[str, Any]:
        return {
            "asset_key": self.partition.asset,
            "partition_key": str(self.partition),
            "batch_id": self.batch_id,
        }


@dataclass(frozen=True, slots=True)
class RunCancelRequested:
    """Cancellation of the run was requested."""

    type: ClassVar[str] = "RunCancelRequested"
    version: ClassVar[int] = 1

    run_id: RunId
    actor: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}"

    def payload(self) -> dict[str, Any]:
        return {"actor": self.actor}


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is over: done, cancelled, or its worker died."""

    type: ClassVar[str] = "RunFinished"
    version: ClassVar[int] = 1

    run_id: RunId
    end: str
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}"

    def payload(self) -> dict[str, Any]:
        return {"end": self.end, "counts": dict(self.counts)}


Event = (
    PlanCreated
    | TaskStarted
    | SlicesExtracted
    | SlicesUnchanged
    | TasksDropped
    | LoadsFailed
    | TaskFinished
    | AuthorityChanged
    | AttemptRefused
    | PartitionPublished
    | PartitionHidden
    | RunCancelRequested
    | RunFinished
)

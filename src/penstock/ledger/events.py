"""The facts that Penstock records. Each one knows the key under which it can be told only once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.partition import PartitionKey, RunId


@dataclass(frozen=True, slots=True)
class PlanCreated:
    """A run was given this many attempts, in one batch."""

    type: ClassVar[str] = "PlanCreated"
    version: ClassVar[int] = 1

    run_id: RunId
    batch: int
    attempts: int
    reasons: dict[str, int]

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}/{self.batch}"

    def payload(self) -> dict[str, Any]:
        return {"batch": self.batch, "attempts": self.attempts, "reasons": self.reasons}


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """An attempt was closed: by a verdict, or cancelled without one."""

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
        }


@dataclass(frozen=True, slots=True)
class AuthorityChanged:
    """Another run is vouched for, or none is any more."""

    type: ClassVar[str] = "AuthorityChanged"
    version: ClassVar[int] = 1

    run_id: RunId
    partition: PartitionKey
    authority_version: int
    act: str

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.partition}/{self.authority_version}"

    def payload(self) -> dict[str, Any]:
        return {
            "asset_key": self.partition.asset,
            "partition_key": str(self.partition),
            "authority_version": self.authority_version,
            "act": self.act,
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
    """The partition's rows left the warehouse table; readers had lost sight of them before."""

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
class RunFinished:
    """The run has nothing left to do."""

    type: ClassVar[str] = "RunFinished"
    version: ClassVar[int] = 1

    run_id: RunId
    counts: dict[str, int]

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}/{self.run_id}"

    def payload(self) -> dict[str, Any]:
        return dict(self.counts)


Event = (
    PlanCreated | TaskFinished | AuthorityChanged | AttemptRefused | PartitionPublished | PartitionHidden | RunFinished
)

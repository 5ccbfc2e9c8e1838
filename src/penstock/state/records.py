"""Records of partitions and attempts as the state database holds them, and the verdicts that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from penstock.errors import ErrorClass
from penstock.lifecycle import AttemptReason, Outcome, PartitionStatus, PlanReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One row of the state store's contract, for one logical partition."""

    key: PartitionKey
    status: PartitionStatus
    current_run_id: RunId | None
    schema_version: str | None
    record_count: int | None
    updated_at: datetime | None
    error_message: str | None
    attempt_count: int
    authority_version: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One partition in one run, as stored in `partition_attempt`."""

    key: PartitionKey
    run_id: RunId
    attempt_no: int
    reason: str
    contract_fingerprint: str
    schema_version: str
    worker_token: str
    lost_count: int
    issued_at: datetime
    stage: Stage | None
    outcome: Outcome | None
    error_class: ErrorClass | None
    error_message: str | None
    complaints: list[dict[str, Any]] | None
    record_count: int | None
    payload_digest: str | None
    payload_bytes: int | None
    content_digest: str | None
    finished_at: datetime | None
    raw_deleted_at: datetime | None = None
    approved_at: datetime | None = None
    demoted_at: datetime | None = None
    measures: dict[str, float | None] | None = None  # what later runs are compared with

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """The complaints that did not reject the attempt."""
        return [complaint for complaint in self.complaints or [] if complaint.get("severity") == "warn"]

    @property
    def was_trusted(self) -> bool:
        return self.outcome is Outcome.SUCCEEDED or self.approved_at is not None


class RetryLimits(Protocol):
    """The limits of a retry policy: rejected verdicts in a row, and the age of the day."""

    @property
    def max_attempts(self) -> int: ...

    @property
    def max_age(self) -> timedelta: ...


@dataclass(frozen=True, slots=True)
class PartitionControl:
    """Control metadata of a partition, stored beside its state: retries, and operators' marks."""

    failures: int = 0  # rejected verdicts in a row, since the last acceptance or an operator's act
    failing_since: datetime | None = None
    next_run_at: datetime | None = None
    strategy: str | None = None
    terminal_at: datetime | None = None
    terminal_by: str | None = None
    terminal_reason: str | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None
    paused_reason: str | None = None
    held_at: datetime | None = None
    held_by: str | None = None
    held_reason: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """State, last attempt and control metadata of a partition. Its displayed status follows from the projections
    (`projections.status_board`), by the same rule everywhere."""

    state: PartitionState
    explicit: bool
    last_attempt_no: int
    last_attempt_run_id: RunId | None
    last_attempt_outcome: Outcome | None
    last_attempt_error_class: ErrorClass | None
    last_attempt_error: str | None
    last_attempt_at: datetime | None
    open_run_id: RunId | None
    control: PartitionControl = PartitionControl()
    expires_at: datetime | None = None  # when its age ends the retries of its policy
    last_backfill_id: str | None = None  # the backfill that the last attempt was issued for

    @property
    def key(self) -> PartitionKey:
        return self.state.key


@dataclass(frozen=True, slots=True)
class FailedPartition:
    """A failed partition, with the facts that a manual retry depends on."""

    key: PartitionKey
    marked: bool  # marked as terminal by an operator
    left_nothing: bool  # none of its attempts left a sealed run or a recorded extraction error


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition that could be attempted now, and the reason."""

    key: PartitionKey
    status: PartitionStatus
    reason: PlanReason
    last_attempt_no: int
    held: bool = False  # an operator chose the run that is trusted
    max_attempts: int | None = None  # of its retry policy
    expires_at: datetime | None = None  # when its retries end because of its age


@dataclass(frozen=True, slots=True)
class Planned:
    """A partition to be attempted, and the last attempt number at planning."""

    key: PartitionKey
    seen_attempt_no: int
    reason: AttemptReason
    contract_fingerprint: str
    schema_version: str
    backfill_id: str | None = None
    max_attempts: int | None = None  # limits of a retry, checked again when it is issued
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Issued:
    """An attempt that this worker holds."""

    attempt: AttemptKey
    attempt_no: int
    contract_fingerprint: str
    previous_record_count: int | None
    lost_count: int = 0
    previous_measures: Mapping[str, float | None] | None = None  # of the run that is trusted at issue


class Consumed(NamedTuple):
    """An input run of a derived partition."""

    partition: PartitionKey
    run_id: RunId
    content_digest: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The verdict that accepts the run of this attempt."""

    attempt: AttemptKey
    worker_token: str
    schema_version: str
    record_count: int
    payload_digest: str
    payload_bytes: int
    content_digest: str
    tries: int = 1  # how often its last task was handed out inside this attempt
    warnings: Sequence[dict[str, Any]] = ()  # complaints that do not reject
    measures: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The verdict that rejects the run of this attempt, with the reason."""

    attempt: AttemptKey
    worker_token: str
    stage: Stage
    error_class: ErrorClass
    error_message: str
    complaints: Sequence[dict[str, Any]] = ()
    record_count: int | None = None
    payload_digest: str | None = None
    payload_bytes: int | None = None
    content_digest: str | None = None
    tries: int = 1
    measures: Mapping[str, float | None] | None = None  # an operator may still approve the run


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The attempt ends without a verdict: it does not count against the partition."""

    attempt: AttemptKey
    worker_token: str
    stage: Stage
    error_class: ErrorClass
    error_message: str
    lost: bool = False
    tries: int = 1


Verdict = Accepted | Rejected


@dataclass(frozen=True, slots=True)
class Refused:
    """A closing that changed nothing, and the reason."""

    attempt: AttemptKey
    why: str


@dataclass(frozen=True, slots=True)
class ClosingResult:
    """The result of a batch of closings. Refused closings never fail the others."""

    applied: Sequence[AttemptKey] = field(default_factory=tuple)
    repeated: Sequence[AttemptKey] = field(default_factory=tuple)
    refused: Sequence[Refused] = field(default_factory=tuple)
    overtaken: Sequence[AttemptKey] = field(default_factory=tuple)  # of `applied`: accepted, but closed as cancelled


@dataclass(frozen=True, slots=True)
class Breaker:
    """The circuit breaker of a source. It is closed while `opened_at` is None."""

    source: str
    confirmations: int = 0
    opened_at: datetime | None = None
    probe_at: datetime | None = None
    probes: int = 0
    not_before: datetime | None = None  # the source asked for a pause
    error_class: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """The responses of a source to the requests of one round."""

    succeeded: int = 0
    refused: int = 0  # different requests that were refused for the source's own reasons
    message: str | None = None
    quota_pause: float | None = None  # seconds that the source asks for

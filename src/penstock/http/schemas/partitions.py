"""Models of partitions, their attempts, their status and the grid."""

from __future__ import annotations

from datetime import date, datetime

from penstock.http.schemas.base import Facts, Model, Partition
from penstock.lifecycle import DisplayStatus, PartitionStatus


class PartitionItem(Partition):
    """A partition with its state and control metadata, as `penstock state inspect` lists it."""

    status: PartitionStatus
    current_run_id: str | None
    schema_version: str | None
    record_count: int | None
    updated_at: datetime | None
    error_message: str | None
    attempt_count: int
    authority_version: int
    implicit: bool
    display_status: DisplayStatus
    next_run_at: datetime | None
    strategy: str | None
    terminal: bool
    terminal_why: str | None
    paused: bool
    held: bool
    maturity: str | None
    open_attempt: str | None


class PartitionPage(Model):
    """A page of partitions."""

    items: list[PartitionItem]
    total: int
    next: str | None


class RunOfPartition(Model):
    """A run of a partition."""

    run_id: str
    attempt_no: int | None
    record_count: int | None


class WaitingRun(RunOfPartition):
    """A trusted run that is not published yet."""

    since: datetime | None


class Authority(Model):
    """The trusted run of a partition."""

    run_id: str | None
    schema_version: str | None
    record_count: int | None
    authority_version: int
    updated_at: datetime | None


class Pointer(Model):
    """The run that the warehouse serves."""

    run_id: str
    available: bool
    record_count: int
    table: str
    table_version: int
    loaded_at: datetime


class ShortAttempt(Model):
    """An attempt in short."""

    attempt_no: int
    run_id: str
    outcome: str | None
    stage: str | None
    error_message: str | None


class WithdrawnInput(Partition):
    """A demoted run that a model partition was derived from."""

    run_id: str
    demoted_at: datetime


class WhyDocument(Partition):
    """One partition: authority, pointer, last attempts, blocks and next step, as `penstock why` explains it."""

    headline: str
    display_status: DisplayStatus
    stale: list[str]
    status: PartitionStatus
    serving: RunOfPartition | None
    waiting: WaitingRun | None
    approve: str | None
    withdrawn_inputs: list[WithdrawnInput]
    requests_in_flight: int | None
    authority: Authority
    pointer: Pointer | None
    attempts: list[ShortAttempt]
    warnings: list[Facts]
    missing_cause: str | None
    blocks: list[str]
    next: str | None


class Attempt(Model):
    """One attempt of a partition."""

    run_id: str
    attempt_no: int
    authoritative: bool
    reason: str
    outcome: str | None
    stage: str | None
    error_class: str | None
    error_message: str | None
    complaints: list[Facts]
    record_count: int | None
    measures: Facts | None
    schema_version: str
    contract_fingerprint: str
    payload_digest: str | None
    content_digest: str | None
    started_at: datetime
    finished_at: datetime | None
    approved_at: datetime | None
    demoted_at: datetime | None
    next_run_at: datetime | None
    trace_id: str | None = None


class Attempts(Model):
    """Every attempt of a partition, newest first."""

    items: list[Attempt]
    total: int


class StatusCount(Model):
    """A number of partitions. Only the fields of `by` are present."""

    query: str | None = None
    customer: str | None = None
    date: str | None = None
    month: str | None = None
    source: str | None = None
    display_status: DisplayStatus
    count: int


class StatusDocument(Model):
    """The number of partitions by display status, as `penstock status` counts them."""

    counts: dict[str, int]
    items: list[StatusCount]
    total: int
    flags: dict[str, int]
    publish_due: int
    provisional: int
    troubles: list[str]
    mismatches: list[Facts]
    unfinished: list[str]
    quota: list[Facts]


class GridRow(Model):
    """The customer of a row of the grid."""

    customer_id: str
    name: str | None
    time_zone: str | None


class GridCode(Model):
    """The meaning of a byte of the grid."""

    code: int
    display_status: DisplayStatus | None
    last_attempt_failed: bool


class GridLabels(Model):
    """The rows and columns of a grid. Bytes with the same `layout` in the header Grid-Layout belong to them."""

    table: str
    layout: str
    rows: list[GridRow]
    first: date
    last: date
    days: int
    codes: list[GridCode]

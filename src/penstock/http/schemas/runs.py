"""Models of runs, orders and backfills."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from pydantic import Field

from penstock.http.schemas.base import Facts, Model
from penstock.state.orders import OrderKind, OrderState


class RunItem(Model):
    """A run with the number of its tasks by state."""

    tenant_id: str
    workspace_id: str
    run_id: str
    state: str
    planned_at: datetime | None
    cancel_requested_at: datetime | None
    finished_at: datetime | None
    tasks_total: int
    tasks_blocked: int
    tasks_ready: int
    tasks_running: int
    tasks_succeeded: int
    tasks_failed: int
    tasks_skipped: int
    tasks_cancelled: int
    first_position: int
    row_version: str


class RunPage(Model):
    """A page of runs, newest first."""

    items: list[RunItem]
    total: int
    next: str | None


class RunDocument(Model):
    """One run: its tasks by stage and state, the failed ones, and the edges that block others."""

    tenant_id: str | None = None
    workspace_id: str | None = None
    run_id: str
    state: str | None = None
    planned_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    finished_at: datetime | None = None
    tasks_total: int | None = None
    tasks_blocked: int | None = None
    tasks_ready: int | None = None
    tasks_running: int | None = None
    tasks_succeeded: int | None = None
    tasks_failed: int | None = None
    tasks_skipped: int | None = None
    tasks_cancelled: int | None = None
    first_position: int | None = None
    row_version: str | None = None
    trace_id: str | None = None
    stages: list[Facts]
    failed: list[Facts]
    blocked: list[Facts]
    kept: bool


class RunCancelled(Model):
    """The request to cancel a run."""

    run_id: str
    requested: bool
    dry_run: bool


Day = Annotated[date, Field(description="YYYY-MM-DD")]
Name = Annotated[str, Field(min_length=1, max_length=300)]


class SelectionBody(Model):
    """Partitions, by key or by filters; without either, all of them."""

    keys: list[Name] = Field(default=[], max_length=10_000)
    source: Name | None = None
    customers: list[Name] = Field(default=[], max_length=10_000)
    queries: list[Name] = Field(default=[], max_length=1000)
    since: Day | None = None
    until: Day | None = None
    status: str | None = Field(default=None, pattern="^(pending|success|failed)$")


class OrderBody(Model):
    """An order for the control loop."""

    kind: OrderKind = OrderKind.RUN
    selection: SelectionBody = SelectionBody()
    reprocess: bool = False
    force: bool = False
    run_id: Name | None = None
    tables: list[Name] = Field(default=[], max_length=1000)
    reason: str | None = Field(default=None, min_length=1, max_length=1000)


class RunBody(Model):
    """A run that the control loop starts."""

    selection: SelectionBody = SelectionBody()
    reprocess: bool = False
    force: bool = False
    reason: str | None = Field(default=None, min_length=1, max_length=1000)


class OrderDocument(Model):
    """An order: its state, the run that carries it out, and its result. `warning`: no control loop is alive."""

    order_id: str
    kind: OrderKind
    state: OrderState
    selection: Facts
    options: Facts
    reason: str | None
    actor: str
    run_id: str | None
    error: str | None
    result: Facts | None
    warning: str | None
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None


class OrderPage(Model):
    """A page of orders, newest first."""

    items: list[OrderDocument]
    total: int
    next: str | None


class OrderCancelled(Model):
    """The request to cancel an order."""

    order_id: str
    requested: bool


class BackfillItem(Model):
    """A backfill with its progress."""

    backfill_id: str
    status: str
    selector: Facts
    reprocess: bool
    priority: int
    chunk_size: int
    max_chunks: int
    total: int
    done: int
    accepted: int
    rejected: int
    skipped: int
    open_chunks: int
    eta: datetime | None
    created_at: datetime
    created_by: str
    finished_at: datetime | None


class BackfillPage(Model):
    """A page of backfills, highest priority first."""

    items: list[BackfillItem]
    total: int
    next: str | None


class BackfillDocument(BackfillItem):
    """A backfill, the first of its failed partitions, and their number."""

    failed: list[str]
    failed_total: int

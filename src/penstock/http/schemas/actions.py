"""Models of previewed actions."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from penstock.control.action_kinds import ActionKind
from penstock.http.schemas.base import Facts, Model, Partition
from penstock.http.schemas.runs import Name, SelectionBody


class PlanBody(Model):
    """An action to preview. `selection` names partitions; the other fields name what single actions need."""

    act: ActionKind
    selection: SelectionBody = SelectionBody()
    reason: str | None = Field(default=None, min_length=1, max_length=1000)
    run_id: Name | None = None
    backfill_id: Name | None = None
    source: Name | None = None
    tables: list[Name] = Field(default=[], max_length=1000)
    reprocess: bool = False
    without_raw: bool = False
    chunk_size: int | None = Field(default=None, ge=1, le=100_000)
    priority: int | None = Field(default=None, ge=-1000, le=1000)
    max_chunks: int | None = Field(default=None, ge=1, le=1000)


class ApplyBody(Model):
    """How to apply a plan. More than 10,000 partitions need `force`."""

    force: bool = False


class PlanResult(Model):
    """The result of a plan: the number of changes, and the partitions that changed since the preview."""

    affected: int
    changed_total: int
    changed: list[str]
    note: str | None
    order_id: str | None
    backfill_id: str | None


class PlanDocument(Model):
    """A plan, with its result if it is applied."""

    token: str
    act: ActionKind
    selection: Facts
    options: Facts
    reason: str | None
    actor: str
    ledger_position: int
    total: int
    created_at: datetime
    expires_at: datetime
    applied_at: datetime | None
    result: PlanResult | None


class PreviewDocument(PlanDocument):
    """A new plan: its first partitions, the number of all of them, and those that are refused by reason."""

    items: list[Partition]
    refusals: dict[str, int]
    refused: dict[str, list[str]]
    facts: Facts

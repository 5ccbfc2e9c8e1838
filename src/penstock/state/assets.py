"""Totals of one run per asset, aggregated from its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.types import UtcTimestamp
from penstock.lifecycle import Outcome


@dataclass(frozen=True, slots=True)
class AssetRun:
    """The attempts of one asset in one run, under one contract."""

    source: str
    query_name: str
    schema_version: str
    contract_fingerprint: str
    accepted: int
    rejected: int
    cancelled: int
    rows: int  # of accepted attempts
    payload_bytes: int
    first_day: date
    last_day: date
    began_at: datetime
    ended_at: datetime | None
    error: str | None  # of one failed attempt; None if none failed

    @property
    def name(self) -> str:
        return f"{self.source}.{self.query_name}"


def assets_of_run(database: Database, run_id: str) -> list[AssetRun]:
    """Return one entry per asset that the run issued attempts of, in the order of their names."""
    a = schema.partition_attempt.c
    accepted = a.outcome == Outcome.SUCCEEDED

    def count(outcome: Outcome) -> sa.ColumnElement[int]:
        return sa.func.count().filter(a.outcome == outcome)

    group = (a.source, a.query_name, a.schema_version, a.contract_fingerprint)
    facts: dict[str, sa.ColumnElement[Any]] = {
        "accepted": count(Outcome.SUCCEEDED),
        "rejected": count(Outcome.FAILED),
        "cancelled": count(Outcome.CANCELLED),
        "rows": _sum(a.record_count, accepted),
        "payload_bytes": _sum(a.payload_bytes, accepted),
        "first_day": sa.func.min(a.logical_date, type_=sa.Date()),
        "last_day": sa.func.max(a.logical_date, type_=sa.Date()),
        "began_at": sa.func.min(a.issued_at, type_=UtcTimestamp()),
        "ended_at": sa.func.max(a.finished_at, type_=UtcTimestamp()),
        "error": sa.func.min(a.error_message).filter(a.outcome == Outcome.FAILED),
    }
    statement = (
        sa.select(*group, *(fact.label(name) for name, fact in facts.items()))
        .where(a.run_id == run_id)
        .group_by(*group)
        .order_by(*group)
    )
    with database.snapshot() as connection:
        return [AssetRun(**row._mapping) for row in connection.execute(statement)]


def _sum(column: sa.ColumnElement[Any], condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    """Return an integer sum: PostgreSQL returns sums of integers as decimals."""
    return sa.cast(sa.func.coalesce(sa.func.sum(column).filter(condition), 0), sa.BigInteger)

"""Stored plans of actions: what was previewed, by whom, and the result once it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import worker_lives
from penstock.errors import AccessDenied, PlanOutdated, StateConflict, UsageError

LIFETIME = timedelta(minutes=15)
_KEPT = timedelta(days=1)  # how long plans stay after their end, so that their result can be read

_PLAN = schema.action_plan


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """A previewed action. `items` are its partitions as ranges of days, `digest` stands for everything else that the
    preview depended on."""

    token: str
    act: str
    selection: Mapping[str, Any]
    options: Mapping[str, Any]
    reason: str | None
    actor: str
    ledger_position: int
    total: int
    digest: str
    items: Mapping[str, Mapping[str, str]]
    created_at: datetime
    expires_at: datetime
    worker_token: str | None = None
    is_interrupted: bool = False  # an earlier call died or failed while it applied the plan: it may have changed items
    applied_at: datetime | None = None
    result: Mapping[str, Any] | None = None


class ActionPlanStore:
    """Stores plans, and lets one caller at a time apply each."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, plan: ActionPlan) -> None:
        """Store a plan. Deletes plans that ended a day ago."""
        names = [column.name for column in _PLAN.columns]
        row = {name: getattr(plan, name) for name in names if getattr(plan, name) is not None}
        row |= {"selection": dict(plan.selection), "options": dict(plan.options), "items": dict(plan.items)}

        def work(connection: Connection) -> None:
            connection.execute(sa.delete(_PLAN).where(_PLAN.c.expires_at <= self._clock() - _KEPT))
            connection.execute(sa.insert(_PLAN), row)

        self._database.transact(work)

    def get(self, token: str) -> ActionPlan:
        """One plan. Raises UsageError for an unknown token."""
        with self._database.snapshot() as connection:
            return _found(connection, token)

    def claim(self, token: str, actor: str, worker_token: str) -> ActionPlan:
        """Begin to apply a plan; a plan that is applied is returned with its result. Raises UsageError for an unknown
        token, AccessDenied for the plan of another actor, PlanOutdated for an expired one, and StateConflict while a
        live process applies it."""
        lives = worker_lives(self._database.dialect, "action_plan.worker_token")
        held: sa.ColumnElement[bool] = sa.literal_column(lives, sa.Boolean)

        def work(connection: Connection) -> ActionPlan:
            locked = sa.select(held.label("held")).where(_PLAN.c.token == token).with_for_update(of=_PLAN)
            row = connection.execute(locked).one_or_none()
            plan = _found(connection, token)
            if plan.actor != actor:
                raise AccessDenied(f"plan {token} was made by {plan.actor}: preview the action yourself")
            if plan.applied_at is not None:
                return plan
            if row is not None and row.held and plan.worker_token != worker_token:
                raise StateConflict(f"plan {token} is being applied: ask for its result later")
            if plan.expires_at <= self._clock() and plan.worker_token is None:
                raise PlanOutdated(f"plan {token} expired at {plan.expires_at:%H:%M:%S} UTC: preview the action again")
            interrupted = plan.is_interrupted or plan.worker_token is not None
            values = {"worker_token": worker_token, "is_interrupted": interrupted}
            connection.execute(sa.update(_PLAN).where(_PLAN.c.token == token).values(**values))
            return replace(plan, is_interrupted=interrupted)

        return self._database.transact(work)

    def finish(self, token: str, worker_token: str, result: Mapping[str, Any]) -> None:
        """Record the result of a plan. Raises StateConflict if another process took the plan over."""
        mine = (_PLAN.c.token == token, _PLAN.c.worker_token == worker_token, _PLAN.c.applied_at.is_(None))
        values = {"applied_at": self._clock(), "result": dict(result), "worker_token": None}

        def work(connection: Connection) -> None:
            if connection.execute(sa.update(_PLAN).where(*mine).values(**values)).rowcount != 1:
                raise StateConflict(f"plan {token} was taken over by another process: ask for its result")

        self._database.transact(work)

    def release(self, token: str, worker_token: str, *, is_interrupted: bool = False) -> None:
        """Give up the claim of a plan, so that it can be applied again. `is_interrupted` if it may have changed
        something."""
        mine = (_PLAN.c.token == token, _PLAN.c.worker_token == worker_token, _PLAN.c.applied_at.is_(None))
        values = {"worker_token": None, **({"is_interrupted": True} if is_interrupted else {})}
        statement = sa.update(_PLAN).where(*mine).values(**values)
        self._database.transact(lambda connection: connection.execute(statement))


def _found(connection: Connection, token: str) -> ActionPlan:
    row = connection.execute(sa.select(_PLAN).where(_PLAN.c.token == token)).one_or_none()
    if row is None:
        raise UsageError(f"there is no plan {token}: it ended a day ago, or never existed")
    return ActionPlan(**row._mapping)

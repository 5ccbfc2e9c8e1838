"""Leases belong to workers: a lease is valid while the heartbeat of its worker, by the database clock, is fresh."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

LEASE_SECONDS = 60


def seconds_ago(dialect: str, seconds: int) -> sa.ColumnElement[Any]:
    """A past time by the database clock, in the stored form of timestamps."""
    return sa.literal_column(_moment(dialect, seconds))


def worker_lives(dialect: str, token: str) -> str:
    """The SQL condition that the worker in the column `token` is alive, so that its leases are valid."""
    return (
        f"EXISTS (SELECT 1 FROM worker w WHERE w.token = {token} AND w.stopped_at IS NULL"
        f" AND w.heartbeat_at >= {_moment(dialect, LEASE_SECONDS)})"
    )


def _moment(dialect: str, seconds: int) -> str:
    if dialect == "sqlite":
        return f"strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-{seconds} seconds')"
    return f"(clock_timestamp() - interval '{seconds} seconds')"

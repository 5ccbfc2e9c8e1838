"""Reads the pause selectors inside the caller's transaction or snapshot."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.state.pause_scope import PauseSelector, Scope


def read_selectors(connection: Connection) -> list[PauseSelector]:
    """Every selector in force, oldest first."""
    table = schema.pause_selector
    rows = connection.execute(sa.select(table).where(table.c.ended_at.is_(None)).order_by(table.c.selector_no))
    return [
        PauseSelector(
            row.selector_no,
            Scope(row.source, row.customer_id, row.query_name, row.first_date, row.last_date),
            row.paused,
        )
        for row in rows
    ]

"""Pauses by selector: one row each, instead of one per partition"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.types import UtcTimestamp

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pause_selector",
        sa.Column(
            "selector_no",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("customer_id", sa.Text(), nullable=True),
        sa.Column("query_name", sa.Text(), nullable=True),
        sa.Column("first_date", sa.Date(), nullable=True),
        sa.Column("last_date", sa.Date(), nullable=True),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("since", UtcTimestamp(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("ended_at", UtcTimestamp(), nullable=True),
        sa.CheckConstraint("first_date <= last_date", name="a_selector_names_days"),
    )
    op.create_index(
        "pause_selectors_in_force",
        "pause_selector",
        ["selector_no"],
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )

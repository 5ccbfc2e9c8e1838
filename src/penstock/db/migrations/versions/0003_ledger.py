"""Ledger: the head of the projections, exported segments, consumed runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.triggers import exported_events_may_go
from penstock.db.types import UtcTimestamp

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("events_by_run", "event", ["run_id", "position"], unique=False)
    op.create_index("events_by_transaction", "event", ["transaction_id", "position"], unique=False)
    op.create_table(
        "ledger_segment",
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("exported_at", UtcTimestamp(), nullable=False),
        sa.CheckConstraint("first_position <= last_position AND events >= 1", name="a_segment_has_events"),
        sa.PrimaryKeyConstraint("first_position", name="ledger_segment_pk"),
    )
    op.create_table(
        "projection_head",
        sa.Column("one", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("advanced_at", UtcTimestamp(), nullable=False),
        sa.CheckConstraint("one = 1", name="one_head_per_schema"),
        sa.PrimaryKeyConstraint("one", name="projection_head_pk"),
    )
    op.create_table(
        "attempt_input",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("input_source", sa.Text(), nullable=False),
        sa.Column("input_customer_id", sa.Text(), nullable=False),
        sa.Column("input_query_name", sa.Text(), nullable=False),
        sa.Column("input_logical_date", sa.Date(), nullable=False),
        sa.Column("input_run_id", sa.Text(), nullable=False),
        sa.Column("input_content_digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "source",
            "customer_id",
            "query_name",
            "logical_date",
            "run_id",
            "input_source",
            "input_customer_id",
            "input_query_name",
            "input_logical_date",
            name="attempt_input_pk",
        ),
    )
    for statement in exported_events_may_go(op.get_bind().dialect.name):
        op.execute(statement)

"""Attempts of a backfill in key order: its failed partitions are read in pages"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_KEY = ["source", "customer_id", "query_name", "logical_date"]


def upgrade() -> None:
    op.drop_index("attempts_by_backfill", table_name="partition_attempt")
    op.create_index(
        "attempts_by_backfill",
        "partition_attempt",
        ["backfill_id", *_KEY],
        sqlite_where=sa.text("backfill_id IS NOT NULL"),
        postgresql_where=sa.text("backfill_id IS NOT NULL"),
    )

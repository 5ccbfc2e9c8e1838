"""Request quotas of sources: counted windows, and shares of a pace"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.types import UtcTimestamp

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "source_quota",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("window_name", sa.Text(), nullable=False),
        sa.Column("window_start", UtcTimestamp(), nullable=False),
        sa.Column("budget", sa.BigInteger(), nullable=False),
        sa.Column("claimed", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("used", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("spans", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("source", "window_name", "window_start", name="source_quota_pk"),
        sa.CheckConstraint("window_name IN ('hour', 'day')", name="quota_window_is_known"),
        sa.CheckConstraint("budget >= 1", name="a_quota_is_not_empty"),
        sa.CheckConstraint("used >= 0 AND used <= claimed AND spans >= 0", name="used_requests_were_claimed"),
    )
    op.create_table(
        "source_pace",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("per_second", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("source", name="source_pace_pk"),
        sa.CheckConstraint("per_second > 0", name="a_pace_is_positive"),
    )
    op.create_table(
        "source_share",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("worker_token", sa.Text(), nullable=False),
        sa.Column("per_second", sa.Double(), nullable=False),
        sa.Column("touched_at", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("source", "worker_token", name="source_share_pk"),
        sa.ForeignKeyConstraint(["source"], ["source_pace.source"], name="share_belongs_to_a_pace"),
        sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="share_has_a_worker"),
        sa.CheckConstraint("per_second >= 0", name="a_share_is_not_negative"),
    )

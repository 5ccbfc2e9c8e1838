"""Control metadata: retries, marks, breakers and backfills"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.types import Json, UtcTimestamp

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("partition_attempt", sa.Column("approved_at", UtcTimestamp(), nullable=True))
    op.add_column("partition_attempt", sa.Column("demoted_at", UtcTimestamp(), nullable=True))
    op.add_column("partition_attempt", sa.Column("backfill_id", sa.Text(), nullable=True))
    op.create_index(
        "attempts_by_backfill",
        "partition_attempt",
        ["backfill_id"],
        unique=False,
        sqlite_where=sa.text("backfill_id IS NOT NULL"),
        postgresql_where=sa.text("backfill_id IS NOT NULL"),
    )
    op.create_table(
        "partition_control",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failing_since", UtcTimestamp(), nullable=True),
        sa.Column("next_run_at", UtcTimestamp(), nullable=True),
        sa.Column("strategy", sa.Text(), nullable=True),
        sa.Column("cleared_attempt_no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("terminal_at", UtcTimestamp(), nullable=True),
        sa.Column("terminal_by", sa.Text(), nullable=True),
        sa.Column("terminal_reason", sa.Text(), nullable=True),
        sa.Column("paused_at", UtcTimestamp(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.Column("held_at", UtcTimestamp(), nullable=True),
        sa.Column("held_by", sa.Text(), nullable=True),
        sa.Column("held_reason", sa.Text(), nullable=True),
        sa.CheckConstraint("(held_at IS NULL) = (held_by IS NULL)", name="a_hold_has_an_author"),
        sa.CheckConstraint("(paused_at IS NULL) = (paused_by IS NULL)", name="a_pause_has_an_author"),
        sa.CheckConstraint("next_run_at IS NULL OR strategy IS NOT NULL", name="a_retry_says_its_strategy"),
        sa.CheckConstraint("(terminal_at IS NULL) = (terminal_by IS NULL)", name="a_terminal_mark_has_an_author"),
        sa.CheckConstraint("failures >= 0", name="failures_are_not_negative"),
        sa.PrimaryKeyConstraint("source", "customer_id", "query_name", "logical_date", name="partition_control_pk"),
    )
    op.create_table(
        "retry_due",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("attempt_no", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("source", "customer_id", "query_name", "logical_date", name="retry_due_pk"),
    )
    op.create_table(
        "source_breaker",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("confirmations", sa.Integer(), server_default="0", nullable=False),
        sa.Column("opened_at", UtcTimestamp(), nullable=True),
        sa.Column("probe_at", UtcTimestamp(), nullable=True),
        sa.Column("probes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", UtcTimestamp(), nullable=True),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.CheckConstraint("(opened_at IS NULL) = (probe_at IS NULL)", name="an_open_breaker_has_a_probe"),
        sa.CheckConstraint("opened_at IS NULL OR error_message IS NOT NULL", name="an_open_breaker_says_why"),
        sa.PrimaryKeyConstraint("source", name="source_breaker_pk"),
    )
    op.create_table(
        "backfill",
        sa.Column("backfill_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("selector", Json(), nullable=False),
        sa.Column("reprocess", sa.Boolean(), nullable=False),
        sa.Column("chunk_size", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_chunks", sa.Integer(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("finished_at", UtcTimestamp(), nullable=True),
        sa.CheckConstraint("status IN ('active', 'paused', 'cancelled', 'finished')", name="backfill_status_is_known"),
        sa.CheckConstraint("chunk_size >= 1 AND max_chunks >= 1", name="chunks_are_not_empty"),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'finished')) = (finished_at IS NOT NULL)", name="ended_backfill_has_a_time"
        ),
        sa.PrimaryKeyConstraint("backfill_id", name="backfill_pk"),
    )
    op.create_table(
        "backfill_chunk",
        sa.Column("backfill_id", sa.Text(), nullable=False),
        sa.Column("chunk_no", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("worker_token", sa.Text(), nullable=False),
        sa.Column("first_key", sa.Text(), nullable=False),
        sa.Column("last_key", sa.Text(), nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcTimestamp(), nullable=False),
        sa.Column("stalled_until", UtcTimestamp(), nullable=True),
        sa.Column("finished_at", UtcTimestamp(), nullable=True),
        sa.CheckConstraint("partitions >= 1", name="a_chunk_has_partitions"),
        sa.ForeignKeyConstraint(["backfill_id"], ["backfill.backfill_id"], name="chunk_belongs_to_a_backfill"),
        sa.PrimaryKeyConstraint("backfill_id", "chunk_no", name="backfill_chunk_pk"),
    )
    op.create_index(
        "open_chunks",
        "backfill_chunk",
        ["backfill_id"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )

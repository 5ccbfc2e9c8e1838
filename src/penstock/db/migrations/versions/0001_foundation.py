"""The tables of the foundation"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.triggers import statements
from penstock.db.types import Json, UtcTimestamp

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", UtcTimestamp(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("filters", Json(), nullable=False),
        sa.Column("flags", Json(), nullable=False),
        sa.Column("affected", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id"),
    )
    op.create_table(
        "contract",
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Text(), nullable=False),
        sa.Column("body", Json(), nullable=False),
        sa.Column("first_used_at", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="contract_pk"),
    )
    op.create_table(
        "event",
        sa.Column("position", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("occurred_at", UtcTimestamp(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("payload", Json(), nullable=False),
        sa.Column("transaction_id", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("position"),
        sa.UniqueConstraint("idempotency_key", name="each_fact_is_told_once"),
    )
    op.create_table(
        "load_batch",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("prepared_at", UtcTimestamp(), nullable=False),
        sa.Column("finished_at", UtcTimestamp(), nullable=True),
        sa.Column("body", Json(), nullable=False),
        sa.CheckConstraint("(status = 'prepared') = (finished_at IS NULL)", name="finished_batch_has_a_time"),
        sa.CheckConstraint("status IN ('prepared', 'published', 'discarded')", name="batch_status_is_known"),
        sa.PrimaryKeyConstraint("batch_id", name="load_batch_pk"),
    )
    op.create_index(
        "prepared_batches",
        "load_batch",
        ["batch_id"],
        unique=False,
        sqlite_where=sa.text("status = 'prepared'"),
        postgresql_where=sa.text("status = 'prepared'"),
    )
    op.create_table(
        "load_batch_item",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("schema_version", sa.Text(), nullable=True),
        sa.Column("table_name", sa.Text(), nullable=True),
        sa.Column("record_count", sa.BigInteger(), nullable=True),
        sa.Column("authority_version", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "act = 'hide' OR (run_id IS NOT NULL AND schema_version IS NOT NULL AND table_name IS NOT NULL AND record_count IS NOT NULL)",
            name="load_names_its_run",
        ),
        sa.CheckConstraint("act IN ('load', 'hide')", name="act_is_known"),
        sa.PrimaryKeyConstraint(
            "batch_id", "source", "customer_id", "query_name", "logical_date", name="load_batch_item_pk"
        ),
    )
    op.create_table(
        "load_record",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Text(), nullable=False),
        sa.Column("record_count", sa.BigInteger(), nullable=False),
        sa.Column("loaded_at", UtcTimestamp(), nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("source", "customer_id", "query_name", "logical_date", "run_id", name="load_record_pk"),
    )
    op.create_table(
        "partition_state",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("current_run_id", sa.Text(), nullable=True),
        sa.Column("schema_version", sa.Text(), nullable=True),
        sa.Column("record_count", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", UtcTimestamp(), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("attempt_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("authority_version", sa.Integer(), server_default="0", nullable=False),
        sa.CheckConstraint("status <> 'failed' OR error_message IS NOT NULL", name="failed_says_why"),
        sa.CheckConstraint(
            "status <> 'success' OR (current_run_id IS NOT NULL AND schema_version IS NOT NULL AND record_count IS NOT NULL)",
            name="success_names_its_run",
        ),
        sa.CheckConstraint("status <> 'success' OR error_message IS NULL", name="success_has_no_error"),
        sa.CheckConstraint("status IN ('pending', 'success', 'failed')", name="status_is_known"),
        sa.CheckConstraint(
            "(authority_version = 0) = (current_run_id IS NULL)", name="authority_version_counts_from_the_first_run"
        ),
        sa.CheckConstraint("attempt_count >= 0", name="attempt_count_is_not_negative"),
        sa.PrimaryKeyConstraint("source", "customer_id", "query_name", "logical_date", name="partition_state_pk"),
    )
    op.create_index(
        "partition_state_by_status",
        "partition_state",
        ["status", "source", "customer_id", "query_name", "logical_date"],
        unique=False,
    )
    op.create_table(
        "publish_due",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("authority_version", sa.Integer(), nullable=False),
        sa.Column("since", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("source", "customer_id", "query_name", "logical_date", name="publish_due_pk"),
    )
    op.create_table(
        "run",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("worker_token", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("filters", Json(), nullable=False),
        sa.Column("planned", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcTimestamp(), nullable=False),
        sa.Column("finished_at", UtcTimestamp(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="run_pk"),
    )
    op.create_table(
        "warehouse_table",
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("lease_worker", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.Text(), nullable=True),
        sa.CheckConstraint("(lease_token IS NULL) = (lease_worker IS NULL)", name="a_lease_has_a_holder"),
        sa.PrimaryKeyConstraint("table_name", name="warehouse_table_pk"),
        sa.UniqueConstraint("source", "query_name", "schema_version", name="one_table_per_schema_version"),
    )
    op.create_table(
        "worker",
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("started_at", UtcTimestamp(), nullable=False),
        sa.Column("heartbeat_at", UtcTimestamp(), nullable=False),
        sa.Column("stopped_at", UtcTimestamp(), nullable=True),
        sa.PrimaryKeyConstraint("token", name="worker_pk"),
    )
    op.create_table(
        "workspace",
        sa.Column("one", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.CheckConstraint("one = 1", name="one_workspace_per_schema"),
        sa.PrimaryKeyConstraint("one", name="workspace_pk"),
    )
    op.create_table(
        "partition_attempt",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt_no", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("contract_fingerprint", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Text(), nullable=False),
        sa.Column("worker_token", sa.Text(), nullable=False),
        sa.Column("lost_count", sa.Integer(), nullable=False),
        sa.Column("issued_at", UtcTimestamp(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("complaints", Json(), nullable=True),
        sa.Column("record_count", sa.BigInteger(), nullable=True),
        sa.Column("payload_digest", sa.Text(), nullable=True),
        sa.Column("payload_bytes", sa.BigInteger(), nullable=True),
        sa.Column("content_digest", sa.Text(), nullable=True),
        sa.Column("finished_at", UtcTimestamp(), nullable=True),
        sa.Column("raw_deleted_at", UtcTimestamp(), nullable=True),
        sa.CheckConstraint(
            "error_class IN ('transient', 'quota', 'auth', 'config', 'data', 'internal')", name="error_class_is_known"
        ),
        sa.CheckConstraint(
            "outcome <> 'SUCCEEDED' OR (record_count IS NOT NULL AND payload_digest IS NOT NULL AND payload_bytes IS NOT NULL AND content_digest IS NOT NULL)",
            name="accepted_attempt_has_digests",
        ),
        sa.CheckConstraint("outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')", name="outcome_is_known"),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome = 'SUCCEEDED' OR (error_class IS NOT NULL AND error_message IS NOT NULL)",
            name="unsuccessful_attempt_says_why",
        ),
        sa.CheckConstraint("stage IN ('extract', 'validate', 'load')", name="stage_is_known"),
        sa.CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="closed_attempt_has_a_time"),
        sa.CheckConstraint("attempt_no >= 1", name="attempt_numbers_start_at_one"),
        sa.CheckConstraint("outcome IS NULL OR stage IS NOT NULL", name="closed_attempt_has_a_stage"),
        sa.ForeignKeyConstraint(["contract_fingerprint"], ["contract.fingerprint"], name="attempt_has_a_contract"),
        sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="attempt_has_a_worker"),
        sa.PrimaryKeyConstraint(
            "source", "customer_id", "query_name", "logical_date", "run_id", name="partition_attempt_pk"
        ),
        sa.UniqueConstraint(
            "source", "customer_id", "query_name", "logical_date", "attempt_no", name="attempt_numbers_are_unique"
        ),
    )
    op.create_index("attempts_by_run", "partition_attempt", ["run_id"], unique=False)
    op.create_index(
        "one_open_attempt_per_partition",
        "partition_attempt",
        ["source", "customer_id", "query_name", "logical_date"],
        unique=True,
        sqlite_where=sa.text("outcome IS NULL"),
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_index(
        "open_attempts_by_worker",
        "partition_attempt",
        ["worker_token"],
        unique=False,
        sqlite_where=sa.text("outcome IS NULL"),
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_table(
        "warehouse_pointer",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("query_name", sa.Text(), nullable=False),
        sa.Column("logical_date", sa.Date(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Text(), nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("table_version", sa.BigInteger(), nullable=False),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("record_count", sa.BigInteger(), nullable=False),
        sa.Column("loaded_at", UtcTimestamp(), nullable=False),
        sa.Column("hidden_at", UtcTimestamp(), nullable=True),
        sa.CheckConstraint("NOT available OR hidden_at IS NULL", name="available_rows_are_not_hidden"),
        sa.ForeignKeyConstraint(["table_name"], ["warehouse_table.table_name"], name="pointer_names_a_table"),
        sa.PrimaryKeyConstraint("source", "customer_id", "query_name", "logical_date", name="warehouse_pointer_pk"),
    )
    op.create_index("pointers_by_table", "warehouse_pointer", ["table_name"], unique=False)
    op.create_index(
        "unavailable_pointers",
        "warehouse_pointer",
        ["source", "customer_id", "query_name", "logical_date"],
        unique=False,
        sqlite_where=sa.text("NOT available AND hidden_at IS NULL"),
        postgresql_where=sa.text("NOT available AND hidden_at IS NULL"),
    )
    dialect = op.get_bind().dialect.name
    for statement in statements(dialect):
        op.execute(sa.text(statement.replace(":", "\\:")))
    if dialect == "postgresql":
        # Lets incremental readers leave out events of transactions that are still open.
        op.execute("ALTER TABLE event ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id()::text::bigint")

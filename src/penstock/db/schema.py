"""The tables of the state database. Constraints refuse impossible rows; `constraints.py` translates their names."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.db.types import Json, UtcTimestamp

metadata = sa.MetaData()

KEY = ("source", "customer_id", "query_name", "logical_date")


def _key() -> list[sa.Column[object]]:
    return [
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("customer_id", sa.Text, nullable=False),
        sa.Column("query_name", sa.Text, nullable=False),
        sa.Column("logical_date", sa.Date, nullable=False),
    ]


workspace = sa.Table(
    "workspace",
    metadata,
    sa.Column("one", sa.Integer, nullable=False),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("workspace_id", sa.Text, nullable=False),
    sa.Column("identity", sa.Text),
    sa.PrimaryKeyConstraint("one", name="workspace_pk"),
    sa.CheckConstraint("one = 1", name="one_workspace_per_schema"),
)

worker = sa.Table(
    "worker",
    metadata,
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("started_at", UtcTimestamp, nullable=False),
    sa.Column("heartbeat_at", UtcTimestamp, nullable=False),
    sa.Column("stopped_at", UtcTimestamp),
    sa.Column("is_control_loop", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("round_at", UtcTimestamp),  # the end of the last round of a control loop
    sa.PrimaryKeyConstraint("token", name="worker_pk"),
)

run = sa.Table(
    "run",
    metadata,
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("worker_token", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("filters", Json, nullable=False),
    sa.Column("planned", sa.Integer, nullable=False),
    sa.Column("started_at", UtcTimestamp, nullable=False),
    sa.Column("finished_at", UtcTimestamp),
    sa.PrimaryKeyConstraint("run_id", name="run_pk"),
)

contract = sa.Table(
    "contract",
    metadata,
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("query_name", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Text, nullable=False),
    sa.Column("body", Json, nullable=False),
    sa.Column("first_used_at", UtcTimestamp, nullable=False),
    sa.PrimaryKeyConstraint("fingerprint", name="contract_pk"),
)

partition_state = sa.Table(
    "partition_state",
    metadata,
    *_key(),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("current_run_id", sa.Text),
    sa.Column("schema_version", sa.Text),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("updated_at", UtcTimestamp, nullable=False),
    sa.Column("error_message", sa.Text),
    sa.Column("attempt_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("authority_version", sa.Integer, nullable=False, server_default="0"),
    sa.PrimaryKeyConstraint(*KEY, name="partition_state_pk"),
    sa.CheckConstraint("status IN ('pending', 'success', 'failed')", name="status_is_known"),
    sa.CheckConstraint(
        "status <> 'success' OR (current_run_id IS NOT NULL AND schema_version IS NOT NULL"
        " AND record_count IS NOT NULL)",
        name="success_names_its_run",
    ),
    sa.CheckConstraint("status <> 'success' OR error_message IS NULL", name="success_has_no_error"),
    sa.CheckConstraint("status <> 'failed' OR error_message IS NOT NULL", name="failed_says_why"),
    sa.CheckConstraint("attempt_count >= 0", name="attempt_count_is_not_negative"),
    sa.CheckConstraint(
        "(authority_version = 0) = (current_run_id IS NULL)", name="authority_version_counts_from_the_first_run"
    ),
    sa.Index("partition_state_by_status", "status", *KEY),
)

partition_attempt = sa.Table(
    "partition_attempt",
    metadata,
    *_key(),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("attempt_no", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("contract_fingerprint", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Text, nullable=False),
    sa.Column("worker_token", sa.Text, nullable=False),
    sa.Column("lost_count", sa.Integer, nullable=False),
    sa.Column("issued_at", UtcTimestamp, nullable=False),
    sa.Column("stage", sa.Text),
    sa.Column("outcome", sa.Text),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("complaints", Json),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("payload_digest", sa.Text),
    sa.Column("payload_bytes", sa.BigInteger),
    sa.Column("content_digest", sa.Text),
    sa.Column("finished_at", UtcTimestamp),
    sa.Column("raw_deleted_at", UtcTimestamp),
    sa.Column("approved_at", UtcTimestamp),
    sa.Column("demoted_at", UtcTimestamp),
    sa.Column("backfill_id", sa.Text),
    sa.Column("measures", Json),
    sa.PrimaryKeyConstraint(*KEY, "run_id", name="partition_attempt_pk"),
    sa.UniqueConstraint(*KEY, "attempt_no", name="attempt_numbers_are_unique"),
    sa.ForeignKeyConstraint(["contract_fingerprint"], ["contract.fingerprint"], name="attempt_has_a_contract"),
    sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="attempt_has_a_worker"),
    sa.CheckConstraint("attempt_no >= 1", name="attempt_numbers_start_at_one"),
    sa.CheckConstraint("outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')", name="outcome_is_known"),
    sa.CheckConstraint("stage IN ('extract', 'validate', 'load')", name="stage_is_known"),
    sa.CheckConstraint(
        "error_class IN ('transient', 'quota', 'auth', 'config', 'data', 'internal')", name="error_class_is_known"
    ),
    sa.CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="closed_attempt_has_a_time"),
    sa.CheckConstraint("outcome IS NULL OR stage IS NOT NULL", name="closed_attempt_has_a_stage"),
    sa.CheckConstraint(
        "outcome IS NULL OR outcome = 'SUCCEEDED' OR (error_class IS NOT NULL AND error_message IS NOT NULL)",
        name="unsuccessful_attempt_says_why",
    ),
    sa.CheckConstraint(
        "outcome <> 'SUCCEEDED' OR"
        " (record_count IS NOT NULL AND payload_digest IS NOT NULL AND payload_bytes IS NOT NULL"
        " AND content_digest IS NOT NULL)",
        name="accepted_attempt_has_digests",
    ),
    sa.Index(
        "one_open_attempt_per_partition",
        *KEY,
        unique=True,
        sqlite_where=sa.text("outcome IS NULL"),
        info={"where": "outcome IS NULL"},
    ),
    sa.Index(
        "open_attempts_by_worker",
        "worker_token",
        sqlite_where=sa.text("outcome IS NULL"),
        info={"where": "outcome IS NULL"},
    ),
    sa.Index("attempts_by_run", "run_id"),
    sa.Index(
        "demoted_attempts",
        *KEY,
        "run_id",
        sqlite_where=sa.text("demoted_at IS NOT NULL"),
        info={"where": "demoted_at IS NOT NULL"},
    ),
    sa.Index(
        "attempts_by_backfill",
        "backfill_id",
        *KEY,
        sqlite_where=sa.text("backfill_id IS NOT NULL"),
        info={"where": "backfill_id IS NOT NULL"},
    ),
)

event = sa.Table(
    "event",
    metadata,
    sa.Column("position", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("event_id", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("idempotency_key", sa.Text, nullable=False),
    sa.Column("occurred_at", UtcTimestamp, nullable=False),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("workspace_id", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("payload", Json, nullable=False),
    sa.Column("transaction_id", sa.BigInteger),
    sa.UniqueConstraint("idempotency_key", name="each_fact_is_told_once"),
    sa.Index("events_by_run", "run_id", "position"),
    sa.Index("events_by_transaction", "transaction_id", "position"),
)

ledger_segment = sa.Table(
    "ledger_segment",
    metadata,
    sa.Column("first_position", sa.BigInteger, nullable=False),
    sa.Column("last_position", sa.BigInteger, nullable=False),
    sa.Column("events", sa.BigInteger, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("exported_at", UtcTimestamp, nullable=False),
    sa.PrimaryKeyConstraint("first_position", name="ledger_segment_pk"),
    sa.CheckConstraint("first_position <= last_position AND events >= 1", name="a_segment_has_events"),
)

projection_head = sa.Table(
    "projection_head",
    metadata,
    sa.Column("one", sa.Integer, nullable=False),
    sa.Column("manifest", sa.Text, nullable=False),
    sa.Column("advanced_at", UtcTimestamp, nullable=False),
    sa.PrimaryKeyConstraint("one", name="projection_head_pk"),
    sa.CheckConstraint("one = 1", name="one_head_per_schema"),
)

attempt_input = sa.Table(
    "attempt_input",
    metadata,
    *_key(),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("input_source", sa.Text, nullable=False),
    sa.Column("input_customer_id", sa.Text, nullable=False),
    sa.Column("input_query_name", sa.Text, nullable=False),
    sa.Column("input_logical_date", sa.Date, nullable=False),
    sa.Column("input_run_id", sa.Text, nullable=False),
    sa.Column("input_content_digest", sa.Text, nullable=False),
    sa.PrimaryKeyConstraint(
        *KEY,
        "run_id",
        "input_source",
        "input_customer_id",
        "input_query_name",
        "input_logical_date",
        name="attempt_input_pk",
    ),
    sa.Index(
        "attempts_by_input",
        "input_source",
        "input_customer_id",
        "input_query_name",
        "input_logical_date",
        "input_run_id",
    ),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at", UtcTimestamp, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("filters", Json, nullable=False),
    sa.Column("flags", Json, nullable=False),
    sa.Column("affected", sa.Integer, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
)

warehouse_table = sa.Table(
    "warehouse_table",
    metadata,
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("query_name", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Text, nullable=False),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger),
    sa.Column("lease_worker", sa.Text),
    sa.Column("lease_token", sa.Text),
    sa.Column("publication", sa.Text),
    sa.PrimaryKeyConstraint("table_name", name="warehouse_table_pk"),
    sa.UniqueConstraint("source", "query_name", "schema_version", name="one_table_per_schema_version"),
    sa.CheckConstraint("(lease_token IS NULL) = (lease_worker IS NULL)", name="a_lease_has_a_holder"),
)

warehouse_pointer = sa.Table(
    "warehouse_pointer",
    metadata,
    *_key(),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("table_version", sa.BigInteger, nullable=False),
    sa.Column("available", sa.Boolean, nullable=False),
    sa.Column("record_count", sa.BigInteger, nullable=False),
    sa.Column("loaded_at", UtcTimestamp, nullable=False),
    sa.Column("hidden_at", UtcTimestamp),
    sa.PrimaryKeyConstraint(*KEY, name="warehouse_pointer_pk"),
    sa.CheckConstraint("NOT available OR hidden_at IS NULL", name="available_rows_are_not_hidden"),
    sa.ForeignKeyConstraint(["table_name"], ["warehouse_table.table_name"], name="pointer_names_a_table"),
    sa.Index(
        "unavailable_pointers",
        *KEY,
        sqlite_where=sa.text("NOT available AND hidden_at IS NULL"),
        info={"where": "NOT available AND hidden_at IS NULL"},
    ),
    sa.Index("pointers_by_table", "table_name"),
)

load_record = sa.Table(
    "load_record",
    metadata,
    *_key(),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Text, nullable=False),
    sa.Column("record_count", sa.BigInteger, nullable=False),
    sa.Column("loaded_at", UtcTimestamp, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.PrimaryKeyConstraint(*KEY, "run_id", name="load_record_pk"),
)

load_batch = sa.Table(
    "load_batch",
    metadata,
    sa.Column("batch_id", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("lease_token", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("prepared_at", UtcTimestamp, nullable=False),
    sa.Column("finished_at", UtcTimestamp),
    sa.Column("body", Json, nullable=False),
    sa.PrimaryKeyConstraint("batch_id", name="load_batch_pk"),
    sa.CheckConstraint("status IN ('prepared', 'published', 'discarded')", name="batch_status_is_known"),
    sa.CheckConstraint("(status = 'prepared') = (finished_at IS NULL)", name="finished_batch_has_a_time"),
    sa.Index(
        "prepared_batches",
        "batch_id",
        sqlite_where=sa.text("status = 'prepared'"),
        info={"where": "status = 'prepared'"},
    ),
)

load_batch_item = sa.Table(
    "load_batch_item",
    metadata,
    sa.Column("batch_id", sa.Text, nullable=False),
    *_key(),
    sa.Column("act", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("schema_version", sa.Text),
    sa.Column("table_name", sa.Text),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("authority_version", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("batch_id", *KEY, name="load_batch_item_pk"),
    sa.CheckConstraint("act IN ('load', 'hide')", name="act_is_known"),
    sa.CheckConstraint(
        "act = 'hide' OR (run_id IS NOT NULL AND schema_version IS NOT NULL AND table_name IS NOT NULL"
        " AND record_count IS NOT NULL)",
        name="load_names_its_run",
    ),
)

publish_due = sa.Table(
    "publish_due",
    metadata,
    *_key(),
    sa.Column("authority_version", sa.Integer, nullable=False),
    sa.Column("since", UtcTimestamp, nullable=False),
    sa.PrimaryKeyConstraint(*KEY, name="publish_due_pk"),
)

partition_control = sa.Table(
    "partition_control",
    metadata,
    *_key(),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failing_since", UtcTimestamp),
    sa.Column("next_run_at", UtcTimestamp),
    sa.Column("strategy", sa.Text),
    sa.Column("cleared_attempt_no", sa.Integer, nullable=False, server_default="0"),
    sa.Column("terminal_at", UtcTimestamp),
    sa.Column("terminal_by", sa.Text),
    sa.Column("terminal_reason", sa.Text),
    sa.Column("paused_at", UtcTimestamp),
    sa.Column("paused_by", sa.Text),
    sa.Column("paused_reason", sa.Text),
    sa.Column("held_at", UtcTimestamp),
    sa.Column("held_by", sa.Text),
    sa.Column("held_reason", sa.Text),
    sa.PrimaryKeyConstraint(*KEY, name="partition_control_pk"),
    sa.CheckConstraint("failures >= 0", name="failures_are_not_negative"),
    sa.CheckConstraint("(terminal_at IS NULL) = (terminal_by IS NULL)", name="a_terminal_mark_has_an_author"),
    sa.CheckConstraint("(paused_at IS NULL) = (paused_by IS NULL)", name="a_pause_has_an_author"),
    sa.CheckConstraint("(held_at IS NULL) = (held_by IS NULL)", name="a_hold_has_an_author"),
    sa.CheckConstraint("next_run_at IS NULL OR strategy IS NOT NULL", name="a_retry_says_its_strategy"),
)

pause_selector = sa.Table(
    "pause_selector",
    metadata,
    sa.Column("selector_no", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("source", sa.Text),
    sa.Column("customer_id", sa.Text),
    sa.Column("query_name", sa.Text),
    sa.Column("first_date", sa.Date),
    sa.Column("last_date", sa.Date),
    sa.Column("paused", sa.Boolean, nullable=False),
    sa.Column("since", UtcTimestamp, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("ended_at", UtcTimestamp),
    sa.CheckConstraint("first_date <= last_date", name="a_selector_names_days"),
    sa.Index(
        "pause_selectors_in_force",
        "selector_no",
        sqlite_where=sa.text("ended_at IS NULL"),
        info={"where": "ended_at IS NULL"},
    ),
)

retry_due = sa.Table(
    "retry_due",
    metadata,
    *_key(),
    sa.Column("attempt_no", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint(*KEY, name="retry_due_pk"),
)

source_breaker = sa.Table(
    "source_breaker",
    metadata,
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("confirmations", sa.Integer, nullable=False, server_default="0"),
    sa.Column("opened_at", UtcTimestamp),
    sa.Column("probe_at", UtcTimestamp),
    sa.Column("probes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("not_before", UtcTimestamp),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.PrimaryKeyConstraint("source", name="source_breaker_pk"),
    sa.CheckConstraint("(opened_at IS NULL) = (probe_at IS NULL)", name="an_open_breaker_has_a_probe"),
    sa.CheckConstraint("opened_at IS NULL OR error_message IS NOT NULL", name="an_open_breaker_says_why"),
)

source_quota = sa.Table(
    "source_quota",
    metadata,
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("window_name", sa.Text, nullable=False),
    sa.Column("window_start", UtcTimestamp, nullable=False),
    sa.Column("budget", sa.BigInteger, nullable=False),
    sa.Column("claimed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("used", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("spans", sa.BigInteger, nullable=False, server_default="0"),
    sa.PrimaryKeyConstraint("source", "window_name", "window_start", name="source_quota_pk"),
    sa.CheckConstraint("window_name IN ('hour', 'day')", name="quota_window_is_known"),
    sa.CheckConstraint("budget >= 1", name="a_quota_is_not_empty"),
    sa.CheckConstraint("used >= 0 AND used <= claimed AND spans >= 0", name="used_requests_were_claimed"),
)

source_pace = sa.Table(
    "source_pace",
    metadata,
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("per_second", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("source", name="source_pace_pk"),
    sa.CheckConstraint("per_second > 0", name="a_pace_is_positive"),
)

source_share = sa.Table(
    "source_share",
    metadata,
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("worker_token", sa.Text, nullable=False),
    sa.Column("per_second", sa.Double, nullable=False),
    sa.Column("touched_at", UtcTimestamp, nullable=False),
    sa.PrimaryKeyConstraint("source", "worker_token", name="source_share_pk"),
    sa.ForeignKeyConstraint(["source"], ["source_pace.source"], name="share_belongs_to_a_pace"),
    sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="share_has_a_worker"),
    sa.CheckConstraint("per_second >= 0", name="a_share_is_not_negative"),
)

backfill = sa.Table(
    "backfill",
    metadata,
    sa.Column("backfill_id", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("selector", Json, nullable=False),
    sa.Column("reprocess", sa.Boolean, nullable=False),
    sa.Column("chunk_size", sa.Integer, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("max_chunks", sa.Integer, nullable=False),
    sa.Column("total", sa.BigInteger, nullable=False),
    sa.Column("cursor", sa.Text),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("finished_at", UtcTimestamp),
    sa.PrimaryKeyConstraint("backfill_id", name="backfill_pk"),
    sa.CheckConstraint("status IN ('active', 'paused', 'cancelled', 'finished')", name="backfill_status_is_known"),
    sa.CheckConstraint("chunk_size >= 1 AND max_chunks >= 1", name="chunks_are_not_empty"),
    sa.CheckConstraint(
        "(status IN ('cancelled', 'finished')) = (finished_at IS NOT NULL)", name="ended_backfill_has_a_time"
    ),
)

backfill_chunk = sa.Table(
    "backfill_chunk",
    metadata,
    sa.Column("backfill_id", sa.Text, nullable=False),
    sa.Column("chunk_no", sa.Integer, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("worker_token", sa.Text, nullable=False),
    sa.Column("first_key", sa.Text, nullable=False),
    sa.Column("last_key", sa.Text, nullable=False),
    sa.Column("partitions", sa.Integer, nullable=False),
    sa.Column("started_at", UtcTimestamp, nullable=False),
    sa.Column("stalled_until", UtcTimestamp),
    sa.Column("finished_at", UtcTimestamp),
    sa.PrimaryKeyConstraint("backfill_id", "chunk_no", name="backfill_chunk_pk"),
    sa.ForeignKeyConstraint(["backfill_id"], ["backfill.backfill_id"], name="chunk_belongs_to_a_backfill"),
    sa.CheckConstraint("partitions >= 1", name="a_chunk_has_partitions"),
    sa.Index(
        "open_chunks",
        "backfill_id",
        sqlite_where=sa.text("finished_at IS NULL"),
        info={"where": "finished_at IS NULL"},
    ),
)

api_token = sa.Table(
    "api_token",
    metadata,
    sa.Column("token_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("secret_hash", sa.Text, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("last_used_at", UtcTimestamp),
    sa.Column("revoked_at", UtcTimestamp),
    sa.Column("revoked_by", sa.Text),
    sa.PrimaryKeyConstraint("token_id", name="api_token_pk"),
    sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="token_role_is_known"),
    sa.CheckConstraint("(revoked_at IS NULL) = (revoked_by IS NULL)", name="a_revocation_has_an_author"),
    sa.Index(
        "one_valid_token_per_name",
        "name",
        unique=True,
        sqlite_where=sa.text("revoked_at IS NULL"),
        info={"where": "revoked_at IS NULL"},
    ),
)

login_session = sa.Table(
    "login_session",
    metadata,
    sa.Column("session_digest", sa.Text, nullable=False),
    sa.Column("token_id", sa.Text),
    sa.Column("name", sa.Text),  # of a person without a token
    sa.Column("role", sa.Text),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("expires_at", UtcTimestamp, nullable=False),
    sa.PrimaryKeyConstraint("session_digest", name="login_session_pk"),
    sa.ForeignKeyConstraint(["token_id"], ["api_token.token_id"], name="session_has_a_token"),
    sa.CheckConstraint("expires_at > created_at", name="a_session_lasts"),
    sa.CheckConstraint(
        "(token_id IS NULL) = (name IS NOT NULL) AND (name IS NULL) = (role IS NULL)",
        name="a_session_has_a_token_or_a_name",
    ),
    sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="session_role_is_known"),
)

login_failure = sa.Table(
    "login_failure",
    metadata,
    sa.Column("client", sa.Text, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("since", UtcTimestamp, nullable=False),
    sa.PrimaryKeyConstraint("client", name="login_failure_pk"),
    sa.CheckConstraint("failures >= 1", name="login_failures_are_counted"),
)

run_order = sa.Table(
    "run_order",
    metadata,
    sa.Column("order_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("selection", Json, nullable=False),
    sa.Column("options", Json, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("worker_token", sa.Text),
    sa.Column("claims", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("error_message", sa.Text),
    sa.Column("result", Json),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("claimed_at", UtcTimestamp),
    sa.Column("finished_at", UtcTimestamp),
    sa.Column("partitions", Json),
    sa.Column("retry_at", UtcTimestamp),
    sa.PrimaryKeyConstraint("order_id", name="run_order_pk"),
    sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="order_has_a_worker"),
    sa.CheckConstraint("kind IN ('run', 'resume', 'validate', 'reconcile', 'compact')", name="order_kind_is_known"),
    sa.CheckConstraint(
        "state IN ('queued', 'claimed', 'running', 'succeeded', 'failed', 'cancelled')", name="order_state_is_known"
    ),
    sa.CheckConstraint(
        "state NOT IN ('claimed', 'running') OR worker_token IS NOT NULL", name="an_order_in_progress_has_a_worker"
    ),
    sa.CheckConstraint("state <> 'queued' OR worker_token IS NULL", name="a_queued_order_has_no_worker"),
    sa.CheckConstraint("(state = 'failed') = (error_message IS NOT NULL)", name="a_failed_order_says_why"),
    sa.CheckConstraint(
        "(state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)", name="ended_order_has_a_time"
    ),
    sa.CheckConstraint("claims >= 0 AND failures >= 0", name="claims_are_not_negative"),
    sa.Index(
        "open_orders",
        "order_id",
        sqlite_where=sa.text("finished_at IS NULL"),
        info={"where": "finished_at IS NULL"},
    ),
)

action_plan = sa.Table(
    "action_plan",
    metadata,
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("act", sa.Text, nullable=False),
    sa.Column("selection", Json, nullable=False),
    sa.Column("options", Json, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("ledger_position", sa.BigInteger, nullable=False),
    sa.Column("total", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("items", Json, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("expires_at", UtcTimestamp, nullable=False),
    sa.Column("worker_token", sa.Text),
    sa.Column("is_interrupted", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("applied_at", UtcTimestamp),
    sa.Column("result", Json),
    sa.PrimaryKeyConstraint("token", name="action_plan_pk"),
    sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="plan_has_a_worker"),
    sa.CheckConstraint("total >= 0", name="a_plan_counts_items"),
    sa.CheckConstraint("expires_at > created_at", name="a_plan_lasts"),
    sa.CheckConstraint("(applied_at IS NULL) = (result IS NULL)", name="an_applied_plan_has_a_result"),
    sa.Index("plans_by_expiry", "expires_at"),
)

idempotency_key = sa.Table(
    "idempotency_key",
    metadata,
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("request_key", sa.Text, nullable=False),
    sa.Column("request_digest", sa.Text, nullable=False),
    sa.Column("reserved_id", sa.Text, nullable=False),
    sa.Column("worker_token", sa.Text),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("response", sa.Text),
    sa.PrimaryKeyConstraint("actor", "request_key", name="idempotency_key_pk"),
    sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="request_has_a_worker"),
    sa.CheckConstraint("(status IS NULL) = (response IS NULL)", name="an_answered_request_has_a_response"),
    sa.Index("idempotency_keys_by_time", "created_at"),
)

alert = sa.Table(
    "alert",
    metadata,
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("alert_id", sa.Text, nullable=False),
    sa.Column("episode", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("since", UtcTimestamp, nullable=False),
    sa.Column("matches", sa.BigInteger, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("example", sa.Text),
    sa.Column("link", sa.Text),
    sa.Column("channels", Json, nullable=False),
    sa.Column("fired_at", UtcTimestamp),
    sa.Column("notified_at", UtcTimestamp),
    sa.Column("notices", sa.Integer, nullable=False, server_default="0"),
    sa.Column("recovered_at", UtcTimestamp),
    sa.PrimaryKeyConstraint("rule", "subject", name="alert_pk"),
    sa.UniqueConstraint("alert_id", name="one_id_per_alert"),
    sa.CheckConstraint("state IN ('pending', 'firing', 'recovered')", name="alert_state_is_known"),
    sa.CheckConstraint("state <> 'pending' OR fired_at IS NULL", name="a_pending_alert_has_not_fired"),
    sa.CheckConstraint("state <> 'firing' OR fired_at IS NOT NULL", name="a_firing_alert_has_fired"),
    sa.CheckConstraint("(state = 'recovered') = (recovered_at IS NOT NULL)", name="a_recovered_alert_has_a_time"),
    sa.CheckConstraint(
        "(fired_at IS NULL) = (notified_at IS NULL) AND (fired_at IS NULL) = (notices = 0)",
        name="a_fired_alert_was_notified",
    ),
    sa.CheckConstraint("episode >= 1 AND matches >= 0 AND notices >= 0", name="an_alert_counts"),
)

alert_delivery = sa.Table(
    "alert_delivery",
    metadata,
    sa.Column("position", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("delivery_id", sa.Text, nullable=False),
    sa.Column("alert_id", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("body", Json, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("not_before", UtcTimestamp, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("error_message", sa.Text),
    sa.Column("worker_token", sa.Text),
    sa.Column("finished_at", UtcTimestamp),
    sa.UniqueConstraint("delivery_id", name="each_notification_is_queued_once"),
    sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="delivery_has_a_worker"),
    sa.CheckConstraint("kind IN ('fired', 'repeated', 'recovered')", name="notification_kind_is_known"),
    sa.CheckConstraint("state IN ('waiting', 'delivered', 'dropped')", name="delivery_state_is_known"),
    sa.CheckConstraint("(state = 'waiting') = (finished_at IS NULL)", name="finished_delivery_has_a_time"),
    sa.CheckConstraint("state = 'waiting' OR worker_token IS NULL", name="finished_delivery_has_no_worker"),
    sa.CheckConstraint("state <> 'dropped' OR error_message IS NOT NULL", name="a_dropped_delivery_says_why"),
    sa.CheckConstraint("attempts >= 0", name="deliveries_are_counted"),
    sa.Index(
        "waiting_deliveries",
        "channel",
        "rule",
        "subject",
        "position",
        sqlite_where=sa.text("state = 'waiting'"),
        info={"where": "state = 'waiting'"},
    ),
    sa.Index("deliveries_by_alert", "alert_id", "position"),
)

alert_cursor = sa.Table(
    "alert_cursor",
    metadata,
    sa.Column("one", sa.Integer, nullable=False),
    sa.Column("worker_token", sa.Text),
    sa.Column("ledger_transaction", sa.BigInteger),
    sa.Column("ledger_position", sa.BigInteger),
    sa.Column("started_at", UtcTimestamp),
    sa.Column("evaluated_at", UtcTimestamp),
    sa.Column("broken_runs", Json),
    sa.PrimaryKeyConstraint("one", name="alert_cursor_pk"),
    sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="evaluation_has_a_worker"),
    sa.CheckConstraint("one = 1", name="one_alert_cursor_per_schema"),
    sa.CheckConstraint(
        "(ledger_position IS NULL) = (ledger_transaction IS NULL)"
        " AND (ledger_position IS NULL) = (evaluated_at IS NULL)"
        " AND (ledger_position IS NULL) = (started_at IS NULL)",
        name="an_evaluation_has_a_cursor",
    ),
)


def add_postgresql_options() -> None:
    """Give the partial indexes their conditions on PostgreSQL. The option loads every driver of that dialect, so a
    process that opens a SQLite file does without it."""
    for table in metadata.tables.values():
        for index in table.indexes:
            if "where" in index.info:
                index.dialect_kwargs["postgresql_where"] = sa.text(index.info["where"])

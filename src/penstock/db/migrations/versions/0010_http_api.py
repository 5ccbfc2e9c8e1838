"""API tokens and logins, orders for the control loop, previewed actions, and keys of repeated requests"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.triggers import protect_tokens_and_orders
from penstock.db.types import Json, UtcTimestamp

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("is_control_loop", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("worker", sa.Column("round_at", UtcTimestamp()))
    op.create_table(
        "api_token",
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("last_used_at", UtcTimestamp()),
        sa.Column("revoked_at", UtcTimestamp()),
        sa.Column("revoked_by", sa.Text()),
        sa.PrimaryKeyConstraint("token_id", name="api_token_pk"),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="token_role_is_known"),
        sa.CheckConstraint("(revoked_at IS NULL) = (revoked_by IS NULL)", name="a_revocation_has_an_author"),
    )
    op.create_index(
        "one_valid_token_per_name",
        "api_token",
        ["name"],
        unique=True,
        sqlite_where=sa.text("revoked_at IS NULL"),
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
    op.create_table(
        "login_session",
        sa.Column("session_digest", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text()),
        sa.Column("name", sa.Text()),  # of a person without a token
        sa.Column("role", sa.Text()),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("expires_at", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("session_digest", name="login_session_pk"),
        sa.ForeignKeyConstraint(["token_id"], ["api_token.token_id"], name="session_has_a_token"),
        sa.CheckConstraint("expires_at > created_at", name="a_session_lasts"),
        sa.CheckConstraint(
            "(token_id IS NULL) = (name IS NOT NULL) AND (name IS NULL) = (role IS NULL)",
            name="a_session_has_a_token_or_a_name",
        ),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="session_role_is_known"),
    )
    op.create_table(
        "login_failure",
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("since", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("client", name="login_failure_pk"),
        sa.CheckConstraint("failures >= 1", name="login_failures_are_counted"),
    )
    op.create_table(
        "run_order",
        sa.Column("order_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("selection", Json(), nullable=False),
        sa.Column("options", Json(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text()),
        sa.Column("worker_token", sa.Text()),
        sa.Column("claims", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("error_message", sa.Text()),
        sa.Column("result", Json()),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("claimed_at", UtcTimestamp()),
        sa.Column("finished_at", UtcTimestamp()),
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
    )
    op.create_index(
        "open_orders",
        "run_order",
        ["order_id"],
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "action_plan",
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("selection", Json(), nullable=False),
        sa.Column("options", Json(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("ledger_position", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("items", Json(), nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("expires_at", UtcTimestamp(), nullable=False),
        sa.Column("worker_token", sa.Text()),
        sa.Column("is_interrupted", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("applied_at", UtcTimestamp()),
        sa.Column("result", Json()),
        sa.PrimaryKeyConstraint("token", name="action_plan_pk"),
        sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="plan_has_a_worker"),
        sa.CheckConstraint("total >= 0", name="a_plan_counts_items"),
        sa.CheckConstraint("expires_at > created_at", name="a_plan_lasts"),
        sa.CheckConstraint("(applied_at IS NULL) = (result IS NULL)", name="an_applied_plan_has_a_result"),
    )
    op.create_index("plans_by_expiry", "action_plan", ["expires_at"])
    op.create_table(
        "idempotency_key",
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("request_key", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("reserved_id", sa.Text(), nullable=False),
        sa.Column("worker_token", sa.Text()),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("response", sa.Text()),
        sa.PrimaryKeyConstraint("actor", "request_key", name="idempotency_key_pk"),
        sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="request_has_a_worker"),
        sa.CheckConstraint("(status IS NULL) = (response IS NULL)", name="an_answered_request_has_a_response"),
    )
    op.create_index("idempotency_keys_by_time", "idempotency_key", ["created_at"])
    for statement in protect_tokens_and_orders(op.get_bind().dialect.name):
        op.execute(statement.replace(":", "\\:"))

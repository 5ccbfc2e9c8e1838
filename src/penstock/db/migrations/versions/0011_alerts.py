"""Alerts: their states, the notifications that wait to be delivered, and the cursor of their evaluation"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.types import Json, UtcTimestamp

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert",
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("alert_id", sa.Text(), nullable=False),
        sa.Column("episode", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since", UtcTimestamp(), nullable=False),
        sa.Column("matches", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("example", sa.Text()),
        sa.Column("link", sa.Text()),
        sa.Column("channels", Json(), nullable=False),
        sa.Column("fired_at", UtcTimestamp()),
        sa.Column("notified_at", UtcTimestamp()),
        sa.Column("notices", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("recovered_at", UtcTimestamp()),
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
    op.create_table(
        "alert_delivery",
        sa.Column(
            "position", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("alert_id", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("body", Json(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("not_before", UtcTimestamp(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("error_message", sa.Text()),
        sa.Column("worker_token", sa.Text()),
        sa.Column("finished_at", UtcTimestamp()),
        sa.UniqueConstraint("delivery_id", name="each_notification_is_queued_once"),
        sa.ForeignKeyConstraint(["worker_token"], ["worker.token"], name="delivery_has_a_worker"),
        sa.CheckConstraint("kind IN ('fired', 'repeated', 'recovered')", name="notification_kind_is_known"),
        sa.CheckConstraint("state IN ('waiting', 'delivered', 'dropped')", name="delivery_state_is_known"),
        sa.CheckConstraint("(state = 'waiting') = (finished_at IS NULL)", name="finished_delivery_has_a_time"),
        sa.CheckConstraint("state = 'waiting' OR worker_token IS NULL", name="finished_delivery_has_no_worker"),
        sa.CheckConstraint("state <> 'dropped' OR error_message IS NOT NULL", name="a_dropped_delivery_says_why"),
        sa.CheckConstraint("attempts >= 0", name="deliveries_are_counted"),
    )
    op.create_index(
        "waiting_deliveries",
        "alert_delivery",
        ["channel", "rule", "subject", "position"],
        sqlite_where=sa.text("state = 'waiting'"),
        postgresql_where=sa.text("state = 'waiting'"),
    )
    op.create_index("deliveries_by_alert", "alert_delivery", ["alert_id", "position"])
    op.create_table(
        "alert_cursor",
        sa.Column("one", sa.Integer(), nullable=False),
        sa.Column("worker_token", sa.Text()),
        sa.Column("ledger_transaction", sa.BigInteger()),
        sa.Column("ledger_position", sa.BigInteger()),
        sa.Column("started_at", UtcTimestamp()),
        sa.Column("evaluated_at", UtcTimestamp()),
        sa.Column("broken_runs", Json()),
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

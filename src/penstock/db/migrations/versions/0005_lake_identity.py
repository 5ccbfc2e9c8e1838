"""The identity that a lake and its database share, the publication behind each head, and indexes of demoted runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workspace", sa.Column("identity", sa.Text(), nullable=True))
    op.add_column("warehouse_table", sa.Column("publication", sa.Text(), nullable=True))
    op.create_index(
        "demoted_attempts",
        "partition_attempt",
        ["source", "customer_id", "query_name", "logical_date", "run_id"],
        sqlite_where=sa.text("demoted_at IS NOT NULL"),
        postgresql_where=sa.text("demoted_at IS NOT NULL"),
    )
    op.create_index(
        "attempts_by_input",
        "attempt_input",
        ["input_source", "input_customer_id", "input_query_name", "input_logical_date", "input_run_id"],
    )

"""Closed attempts are frozen in every column, what is marked on them later is marked once; holds settle failures"""

from __future__ import annotations

from alembic import op

from penstock.db.triggers import freeze_closed_attempts

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


# Rollback and approve restart the count of failures; in older rows a count of 0 means no failure since.
_SETTLED = """
UPDATE partition_control SET cleared_attempt_no = COALESCE((
    SELECT MAX(a.attempt_no) FROM partition_attempt a
    WHERE a.source = partition_control.source AND a.customer_id = partition_control.customer_id
    AND a.query_name = partition_control.query_name AND a.logical_date = partition_control.logical_date), 0)
WHERE held_at IS NOT NULL AND failures = 0
"""


def upgrade() -> None:
    op.execute(_SETTLED)
    for statement in freeze_closed_attempts(op.get_bind().dialect.name):
        op.execute(statement.replace(":", "\\:"))

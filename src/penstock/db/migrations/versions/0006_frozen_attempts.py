"""Closed attempts are frozen in every column; what is marked on them later is marked once"""

from __future__ import annotations

from alembic import op

from penstock.db.triggers import freeze_closed_attempts

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in freeze_closed_attempts(op.get_bind().dialect.name):
        op.execute(statement.replace(":", "\\:"))

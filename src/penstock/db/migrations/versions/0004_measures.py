"""Measures of a run, with which later runs are compared"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.types import Json

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("partition_attempt", sa.Column("measures", Json(), nullable=True))

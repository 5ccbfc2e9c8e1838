"""Orders: the partitions that were previewed, and the time before which a failed order is not taken again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.types import Json, UtcTimestamp

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_order", sa.Column("partitions", Json()))
    op.add_column("run_order", sa.Column("retry_at", UtcTimestamp()))

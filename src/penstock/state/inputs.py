"""Which runs went into which, as attempts recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.projections.fact import Fact

if TYPE_CHECKING:
    import pyarrow as pa


class InputReader:
    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, finished: Sequence[Fact]) -> pa.Table:
        """The consumed runs of these finished tasks: one question for each run, not for each task."""
        import pyarrow as pa

        from penstock.projections.consumed import CONSUMED

        table = schema.attempt_input
        wanted = {(fact.payload["partition_key"], fact.run_id) for fact in finished}
        runs = sorted({fact.run_id for fact in finished if fact.run_id})
        with self._database.snapshot() as connection:
            rows = connection.execute(
                sa.select(*(table.c[name] for name in CONSUMED.names)).where(table.c.run_id.in_(runs))
            ).all()
        kept = [row for row in rows if (f"{row[0]}/{row[1]}/{row[2]}/{row[3].isoformat()}", row.run_id) in wanted]
        columns = list(zip(*kept, strict=True)) or [()] * len(CONSUMED)
        return pa.Table.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, CONSUMED, strict=True)], schema=CONSUMED
        )

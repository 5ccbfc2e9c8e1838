"""The expected days that pauses cover, of selectors and of single partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey
from penstock.state.pause_scope import PauseSelector, PauseSelectors
from penstock.state.pause_selectors import read_selectors

_CONTROL = schema.partition_control


@dataclass(frozen=True, slots=True)
class Pauses:
    """All pauses at one moment. Two equal values cover the same days."""

    selectors: tuple[PauseSelector, ...]
    partitions: tuple[PartitionKey, ...]

    def days_of(self, ranges: Iterable[ExpectedRange]) -> Iterator[ExpectedRange]:
        """The paused days of these ranges, as ranges."""
        selectors = PauseSelectors(self.selectors)
        for span in ranges if self.selectors else ():
            for first, last, pause_no in selectors.pieces(span):
                if pause_no is not None and first <= last:
                    yield ExpectedRange(span.source, span.customer_id, span.query_name, first, last)
        for key in self.partitions:
            yield ExpectedRange(key.source, key.customer_id, key.query_name, key.logical_date, key.logical_date)


def read_pauses(database: Database) -> Pauses:
    """The pauses now."""
    keys = sa.select(*(_CONTROL.c[name] for name in schema.KEY)).where(_CONTROL.c.paused_at.is_not(None))
    with database.snapshot() as connection:
        selectors = tuple(read_selectors(connection))
        return Pauses(selectors, tuple(PartitionKey(*row) for row in connection.execute(keys.order_by(*schema.KEY))))

"""One round of the control loop: what is issued now, out of fresh work, history and backfills, each with its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.contract.contract import Contract
from penstock.control import spans
from penstock.control.plan import DUE, make_plan
from penstock.control.restate import schedules
from penstock.control.select import Selection, expected
from penstock.control.share import allocate
from penstock.partition import RunId
from penstock.settings import Settings
from penstock.state.backfills import Backfill, BackfillStore, Chunk
from penstock.state.reader import StateReader
from penstock.state.records import ExpectedRange, Planned


@dataclass(frozen=True, slots=True)
class Stretch:
    """A claimed chunk of a backfill with what is to be attempted in it. After the last one nothing is left to claim."""

    chunk: Chunk
    items: Sequence[Planned]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Round:
    """What one round issues. `waiting` partitions are due but have to wait for the next one."""

    fresh: Sequence[Planned]
    history: Sequence[Planned]
    stretches: Sequence[Stretch]
    waiting: int

    @property
    def items(self) -> list[Planned]:
        """Each partition once, whoever asked for it first."""
        every = [*self.fresh, *(item for stretch in self.stretches for item in stretch.items), *self.history]
        return list({item.key: item for item in reversed(every)}.values())


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans rounds for one worker."""

    reader: StateReader
    backfills: BackfillStore
    settings: Settings
    contracts: Mapping[str, Contract]
    worker_token: str

    def plan(self, run_id: RunId, now: datetime) -> Round:
        """Claim and choose what this round works on.

        Fresh is what a person or a policy asked for, and missing days of the last while. Older missing days are
        history: they share with the backfills what is reserved for old data, and leave alone what a backfill covers.
        """
        size, share = self.settings.control.round, self.settings.control.backfill_share
        everything = spans.in_order(expected(self.settings, Selection(), now))
        recent = [_recent(span, self.settings.control.fresh_days) for span in everything]
        active = self.backfills.all("active")
        covered = [
            span for backfill in (*active, *self.backfills.all("paused")) for span in self._ranges(backfill, now)
        ]
        fresh = [
            *self._due(everything, [r for r in DUE if r != "missing"], now, size),
            *self._due(spans.in_order(recent), ["missing"], now, size),
        ]
        old = self._due(spans.without(spans.without(everything, recent), covered), ["missing"], now, size)
        remaining = {b.backfill_id: b.total - self.backfills.progress(b.backfill_id).done for b in active}
        for_fresh, for_old = allocate(size, len(fresh), len(old) + sum(remaining.values()), share)
        stretches = self._stretches(active, run_id, now, for_old)
        used = sum(len(stretch.items) for stretch in stretches)
        history = old[: max(0, for_old - used)]
        waiting = len(fresh) - for_fresh + len(old) - len(history)
        if stretches:  # there may be more; without any, others work on what is left
            waiting += sum(remaining.values()) - sum(stretch.chunk.partitions for stretch in stretches)
        return Round(fresh[:for_fresh], history, stretches, max(0, waiting))

    def _due(self, ranges: Sequence[ExpectedRange], reasons: Sequence[str], now: datetime, limit: int) -> list[Planned]:
        restated = schedules(self.settings.queries)
        plan = make_plan(
            self.reader, ranges, self.contracts, now, restated=restated, reasons=reasons, limit=limit, newest_first=True
        )
        return list(plan.items)

    def _stretches(self, active: Sequence[Backfill], run_id: RunId, now: datetime, budget: int) -> list[Stretch]:
        """Chunks for the budget, of the most urgent backfills first."""
        found: list[Stretch] = []
        for backfill in active:
            ranges = self._ranges(backfill, now)
            while budget > 0:
                stretch = self._stretch(backfill, ranges, run_id, now, budget)
                if stretch is None:
                    break
                found.append(stretch)
                budget -= len(stretch.items)
                backfill = replace(backfill, cursor=max(backfill.cursor or stretch.chunk.last, stretch.chunk.last))
        return found

    def _stretch(
        self, backfill: Backfill, ranges: Sequence[ExpectedRange], run_id: RunId, now: datetime, budget: int
    ) -> Stretch | None:
        chunk = self.backfills.take_over(backfill.backfill_id, self.worker_token, run_id)
        if chunk is None:
            page = spans.page(ranges, backfill.cursor, min(backfill.chunk_size, budget))
            if not page:
                self.backfills.end(backfill.backfill_id)
                return None
            chunk = self.backfills.claim(
                backfill, self.worker_token, run_id, spans.first_key(page), spans.last_key(page), spans.count(page)
            )
            if chunk is None:  # paused, full, or another worker was faster
                return None
        inside = spans.between(ranges, chunk.first, chunk.last)
        reasons = ["missing", "requeued", *(["success"] if backfill.reprocess else [])]
        plan = make_plan(
            self.reader, inside, self.contracts, now, restated={}, reasons=reasons, judged_before=backfill.created_at
        )
        items = [replace(item, reason="backfill") for item in plan.items]
        cursor = max(chunk.last, backfill.cursor or chunk.last)
        return Stretch(chunk, items, is_last=not spans.page(ranges, cursor, 1))

    def _ranges(self, backfill: Backfill, now: datetime) -> list[ExpectedRange]:
        return ranges_of(self.settings, backfill.selector, now)


def ranges_of(settings: Settings, selector: Mapping[str, object], now: datetime) -> list[ExpectedRange]:
    """The partitions that a stored selector means today."""
    return spans.in_order(expected(settings, Selection.from_dict(selector), now))


def _recent(span: ExpectedRange, days: int) -> ExpectedRange:
    over = span.over or span.last
    return replace(span, first=max(span.first, over - timedelta(days=days - 1)))

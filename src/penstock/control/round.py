"""One round of the control loop: what is issued now, out of fresh work, history and backfills, each with its share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.config.settings import Settings
from penstock.contract.contract import Contract
from penstock.control.backfill_partitions import BackfillPartitions, fetched, partitions_of
from penstock.control.plan import DUE, make_plan
from penstock.control.ranges import in_key_order, subtract, without_frozen
from penstock.control.restate import schedules
from penstock.control.select import Selection, expected
from penstock.control.share import allocate
from penstock.expected import ExpectedRange
from penstock.flow.guard import Gate
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey, RunId
from penstock.state.backfills import Backfill, BackfillStore, Chunk
from penstock.state.reader import StateReader
from penstock.state.records import Planned

_PROBES = 50  # partitions among which the runner chooses its probe of a source in trouble
_STALL = timedelta(minutes=1)  # before a chunk that could not be finished is looked at again


@dataclass(frozen=True, slots=True)
class ClaimedChunk:
    """A claimed chunk of a backfill with what is to be attempted in it."""

    backfill: Backfill
    chunk: Chunk
    items: Sequence[Planned]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round issues. `waiting` partitions are due but have to wait for the next one."""

    fresh: Sequence[Planned]
    history: Sequence[Planned]
    stretches: Sequence[ClaimedChunk]
    waiting: int

    @property
    def items(self) -> list[Planned]:
        """Each partition once; what a backfill asks for is its own, so that it knows what became of it."""
        every = [*(item for stretch in self.stretches for item in stretch.items), *self.fresh, *self.history]
        return list({item.key: item for item in reversed(every)}.values())


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans rounds for one worker. `gate` says what may be issued for a source now."""

    reader: StateReader
    backfills: BackfillStore
    settings: Settings
    contracts: Mapping[str, Contract]
    worker_token: str
    gate: Callable[[str], Gate]

    def plan(self, run_id: RunId, now: datetime) -> Round:
        """Claim and choose what this round works on.

        Fresh is what a person or a policy asked for, and missing days of the last while. Older missing days are
        history: they share with the backfills what is reserved for old data, and leave alone what a backfill covers.
        Sources in trouble take no place from others: they get a probe at most.
        """
        size, share = self.settings.control.round, self.settings.control.backfill_share
        gates = {source: self.gate(source) for source in self.settings.sources}
        everything = in_key_order(without_frozen(fetched(expected(self.settings, Selection(), now))))
        probes = [
            item
            for source, found in gates.items()
            if found is Gate.PROBE
            for item in self._due([span for span in everything if span.source == source], DUE, now, _PROBES)
        ]
        everything = [span for span in everything if gates[span.source] is Gate.OPEN]
        recent = [_recent(span, self.settings.control.fresh_days) for span in everything]
        active = self.backfills.all("active")
        under_way = (*active, *self.backfills.all("paused"))
        covered = [span for backfill in under_way for span in self._partitions(backfill, now).covered()]
        fresh = [
            *self._due(everything, [r for r in DUE if r != "missing"], now, size),
            *self._due(in_key_order(recent), ["missing"], now, size),
        ]
        old = self._due(subtract(subtract(everything, recent), covered), ["missing"], now, size)
        remaining = sum(self._remaining(backfill, now) for backfill in active)
        for_fresh, for_old = allocate(size, len(fresh), len(old) + remaining, share)
        stretches = self._stretches(active, gates, run_id, now, for_old)
        used = sum(len(stretch.items) for stretch in stretches)
        history = old[: max(0, for_old - used)]
        waiting = len(fresh) - for_fresh + len(old) - len(history)
        if stretches:  # there may be more; without any, others work on what is left
            waiting += remaining - sum(stretch.chunk.partitions for stretch in stretches)
        return Round([*probes, *fresh[:for_fresh]], history, stretches, max(0, waiting))

    def conclude(self, stretches: Sequence[ClaimedChunk], now: datetime) -> None:
        """Finish the chunks in which nothing is left, by what the state says and not by what we meant to do."""
        for stretch in stretches:
            partitions = self._partitions(stretch.backfill, now)
            inside = partitions.between(stretch.chunk.first, stretch.chunk.last)
            if self._items(stretch.backfill, inside, now, ("waiting", "open")) or self._paused(
                stretch.backfill, inside, now
            ):
                self.backfills.stall(stretch.chunk, now + _STALL)
            else:
                self.backfills.finish(stretch.chunk)
            if partitions.page(self._cursor(stretch.backfill), 1) is None:
                self.backfills.end(stretch.backfill.backfill_id)

    def _due(self, ranges: Sequence[ExpectedRange], reasons: Sequence[str], now: datetime, limit: int) -> list[Planned]:
        restated = schedules(self.settings.queries)
        plan = make_plan(
            self.reader, ranges, self.contracts, now, restated=restated, reasons=reasons, order="newest", limit=limit
        )
        return list(plan.items)

    def _remaining(self, backfill: Backfill, now: datetime) -> int:
        """Partitions after the cursor, and those of chunks that are not finished."""
        after = self._partitions(backfill, now).count(backfill.cursor)
        return after + self.backfills.progress(backfill.backfill_id).claimed

    def _stretches(
        self, active: Sequence[Backfill], gates: Mapping[str, Gate], run_id: RunId, now: datetime, budget: int
    ) -> list[ClaimedChunk]:
        """Chunks for the budget, of the most urgent backfills first."""
        found: list[ClaimedChunk] = []
        for backfill in active:
            partitions = self._partitions(backfill, now)
            if any(gates.get(source, Gate.SHUT) is not Gate.OPEN for source in partitions.sources()):
                continue
            if partitions.page(backfill.cursor, 1) is None:
                self.backfills.end(backfill.backfill_id)  # which it does once no chunk is open any more
            while budget > 0:
                stretch = self._stretch(backfill, partitions, run_id, now, budget)
                if stretch is None:
                    break
                found.append(stretch)
                budget -= max(1, len(stretch.items))
                backfill = replace(backfill, cursor=self._cursor(backfill))
        return found

    def _stretch(
        self, backfill: Backfill, partitions: BackfillPartitions, run_id: RunId, now: datetime, budget: int
    ) -> ClaimedChunk | None:
        chunk = self.backfills.take_over(backfill.backfill_id, self.worker_token, run_id)
        if chunk is None:
            page = partitions.page(backfill.cursor, min(backfill.chunk_size, budget))
            if page is None:
                return None
            chunk = self.backfills.claim(backfill, self.worker_token, run_id, page.first, page.last, page.partitions)
            if chunk is None:  # paused, full, or another worker was faster
                return None
        return ClaimedChunk(backfill, chunk, self._items(backfill, partitions.between(chunk.first, chunk.last), now))

    def _items(
        self, backfill: Backfill, ranges: Sequence[ExpectedRange], now: datetime, also: Sequence[str] = ()
    ) -> list[Planned]:
        """What is to be attempted for the backfill in these ranges; `also` for further reasons."""
        version = backfill.selector.get("schema_version")
        again = ["success", "restate", "retry"] if backfill.reprocess else []
        reasons = [*([] if version else ["missing", "requeued"]), *again, *also]
        plan = make_plan(
            self.reader,
            ranges,
            self.contracts,
            now,
            restated=schedules(self.settings.queries),
            reasons=reasons,
            judged_before=backfill.created_at,
            schema_version=version,
        )
        return [replace(item, reason="backfill", backfill_id=backfill.backfill_id) for item in plan.items]

    def _paused(self, backfill: Backfill, ranges: Sequence[ExpectedRange], now: datetime) -> bool:
        """True if an operator paused a partition that is to be attempted for the backfill: it waits for `resume`."""
        version = backfill.selector.get("schema_version")
        statuses = [] if version else [PartitionStatus.PENDING]
        statuses += [PartitionStatus.SUCCESS] if backfill.reprocess else []
        return any(
            make_plan(
                self.reader,
                ranges,
                self.contracts,
                now,
                restated={},
                reasons=["paused"],
                status=status,
                judged_before=backfill.created_at,
                schema_version=version,
                limit=1,
            ).items
            for status in statuses
        )

    def _cursor(self, backfill: Backfill) -> PartitionKey | None:
        return self.backfills.get(backfill.backfill_id).cursor

    def _partitions(self, backfill: Backfill, now: datetime) -> BackfillPartitions:
        return partitions_of(self.backfills, self.settings, backfill, now)


def _recent(span: ExpectedRange, days: int) -> ExpectedRange:
    over = span.over or span.last
    return replace(span, first=max(span.first, over - timedelta(days=days - 1)))

"""Plans one round of the control loop: shares its size between fresh partitions, history and backfills."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.config.settings import Settings
from penstock.contract.contract import Contract
from penstock.control.backfill_partitions import BackfillPartitions, partitions_of
from penstock.control.plan import DUE, make_plan
from penstock.control.ranges import in_key_order, subtract, without_frozen
from penstock.control.restate import schedules
from penstock.control.select import Selection, by_kind, expected
from penstock.control.share import allocate
from penstock.expected import ExpectedRange
from penstock.flow.guard import Gate
from penstock.lifecycle import AttemptReason, PartitionStatus, PlanReason
from penstock.partition import PartitionKey, RunId
from penstock.state.backfills import Backfill, BackfillStore, Chunk
from penstock.state.reader import StateReader
from penstock.state.records import Planned

_PROBES = 50  # candidates for the runner's probe of a source whose breaker is open
_STALL = timedelta(minutes=1)  # pause before a chunk that could not be finished is planned again


@dataclass(frozen=True, slots=True)
class ClaimedChunk:
    """A claimed chunk of a backfill, with the partitions to attempt in it."""

    backfill: Backfill
    chunk: Chunk
    items: Sequence[Planned]


@dataclass(frozen=True, slots=True)
class Round:
    """The partitions that one round issues. `waiting` more are due and left to the next round."""

    fresh: Sequence[Planned]
    history: Sequence[Planned]
    chunks: Sequence[ClaimedChunk]
    waiting: int

    @property
    def items(self) -> list[Planned]:
        """The planned partitions, each once. A backfill has precedence, so that the outcome of its partitions counts
        there."""
        every = [*(item for claimed in self.chunks for item in claimed.items), *self.fresh, *self.history]
        return list({item.key: item for item in reversed(every)}.values())


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans rounds for one worker. `gate` returns what may be issued for a source now."""

    reader: StateReader
    backfills: BackfillStore
    settings: Settings
    contracts: Mapping[str, Contract]
    worker_token: str
    gate: Callable[[str], Gate]

    def plan(self, run_id: RunId, now: datetime) -> Round:
        """Choose the partitions of this round, and claim chunks of backfills.

        Fresh partitions are those that a person or a policy requested, and missing days of the last `fresh_days`.
        Older missing days are history: they share the part that is reserved for old data with the backfills, without
        the days that a backfill covers. A source whose breaker is open gets a probe at most. A source of whose quota
        only the reserve is left gets no old data.
        """
        size, share = self.settings.control.round, self.settings.control.backfill_share
        gates = {source: self.gate(source) for source in self.settings.sources}
        everything = in_key_order(without_frozen(by_kind(expected(self.settings, Selection(), now)).fetched))
        probes = [
            item
            for source, found in gates.items()
            if found is Gate.PROBE
            for item in self._due([span for span in everything if span.source == source], DUE, now, _PROBES)
        ]
        admitted = [span for span in everything if gates[span.source] in (Gate.OPEN, Gate.FRESH)]
        everything = [span for span in admitted if gates[span.source] is Gate.OPEN]
        only_fresh = [span for span in admitted if gates[span.source] is Gate.FRESH]
        recent = [_recent(span, self.settings.control.fresh_days) for span in admitted]
        active = self.backfills.all("active")
        under_way = (*active, *self.backfills.all("paused"))
        covered = [span for backfill in under_way for span in self._partitions(backfill, now).covered()]
        fresh = [
            *self._due(everything, [r for r in DUE if r is not PlanReason.MISSING], now, size),
            *self._due(only_fresh, [PlanReason.REQUEUED, PlanReason.RESTATE], now, size),
            *self._due([span for span in recent if gates[span.source] is Gate.FRESH], [PlanReason.RETRY], now, size),
            *self._due(in_key_order(recent), [PlanReason.MISSING], now, size),
        ]
        old = self._due(subtract(subtract(everything, recent), covered), [PlanReason.MISSING], now, size)
        remaining = sum(self._remaining(backfill, now) for backfill in active)
        for_fresh, for_old = allocate(size, len(fresh), len(old) + remaining, share)
        chunks = self._claim_chunks(active, gates, run_id, now, for_old)
        used = sum(len(claimed.items) for claimed in chunks)
        history = old[: max(0, for_old - used)]
        waiting = len(fresh) - for_fresh + len(old) - len(history)
        if chunks:  # there may be more; without any, other workers hold the rest
            waiting += remaining - sum(claimed.chunk.partitions for claimed in chunks)
        return Round([*probes, *fresh[:for_fresh]], history, chunks, max(0, waiting))

    def conclude(self, chunks: Sequence[ClaimedChunk], now: datetime) -> None:
        """Finish the chunks in which no partition is left to attempt, by the state of their partitions and not by the
        plan of the round. The others are stalled for a minute."""
        for claimed in chunks:
            partitions = self._partitions(claimed.backfill, now)
            inside = partitions.between(claimed.chunk.first, claimed.chunk.last)
            if self._has_work_left(claimed.backfill, inside, now):
                self.backfills.stall(claimed.chunk, now + _STALL)
            else:
                self.backfills.finish(claimed.chunk)
            if partitions.page(self._cursor(claimed.backfill), 1) is None:
                self.backfills.end(claimed.backfill.backfill_id)

    def _due(
        self, ranges: Sequence[ExpectedRange], reasons: Sequence[PlanReason], now: datetime, limit: int
    ) -> list[Planned]:
        restated = schedules(self.settings.queries)
        plan = make_plan(
            self.reader, ranges, self.contracts, now, restated=restated, reasons=reasons, order="newest", limit=limit
        )
        return list(plan.items)

    def _remaining(self, backfill: Backfill, now: datetime) -> int:
        """The number of partitions after the cursor and in chunks that are not finished."""
        after = self._partitions(backfill, now).count(backfill.cursor)
        return after + self.backfills.progress(backfill.backfill_id).claimed

    def _claim_chunks(
        self, active: Sequence[Backfill], gates: Mapping[str, Gate], run_id: RunId, now: datetime, budget: int
    ) -> list[ClaimedChunk]:
        """Claim chunks until the budget is used, of the most urgent backfills first."""
        found: list[ClaimedChunk] = []
        for backfill in active:
            partitions = self._partitions(backfill, now)
            if any(gates.get(source, Gate.SHUT) is not Gate.OPEN for source in partitions.sources()):
                continue
            if partitions.page(backfill.cursor, 1) is None:
                self.backfills.end(backfill.backfill_id)  # takes effect once no chunk is open
            while budget > 0:
                claimed = self._claim_chunk(backfill, partitions, run_id, now, budget)
                if claimed is None:
                    break
                found.append(claimed)
                budget -= max(1, len(claimed.items))
                backfill = replace(backfill, cursor=self._cursor(backfill))
        return found

    def _claim_chunk(
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

    def _items(self, backfill: Backfill, ranges: Sequence[ExpectedRange], now: datetime) -> list[Planned]:
        """The partitions to attempt for the backfill in these ranges."""
        plan = make_plan(
            self.reader,
            ranges,
            self.contracts,
            now,
            restated=schedules(self.settings.queries),
            reasons=_reasons(backfill),
            judged_before=backfill.created_at,
            schema_version=backfill.selector.get("schema_version"),
        )
        return [replace(i, reason=AttemptReason.BACKFILL, backfill_id=backfill.backfill_id) for i in plan.items]

    def _has_work_left(self, backfill: Backfill, ranges: Sequence[ExpectedRange], now: datetime) -> bool:
        """True if a partition is still to be attempted for the backfill, is being attempted, waits for the end of a
        pause that its source asked for, or is paused by an operator (it waits for `resume` then)."""
        reasons = [*_reasons(backfill), PlanReason.WAITING, PlanReason.OPEN]
        if self._any(backfill, ranges, now, reasons, restated=schedules(self.settings.queries)):
            return True
        statuses = [] if backfill.selector.get("schema_version") else [PartitionStatus.PENDING]
        statuses += [PartitionStatus.SUCCESS] if backfill.reprocess else []
        return any(self._any(backfill, ranges, now, [PlanReason.PAUSED], status=status) for status in statuses)

    def _any(
        self,
        backfill: Backfill,
        ranges: Sequence[ExpectedRange],
        now: datetime,
        reasons: Sequence[PlanReason],
        *,
        status: PartitionStatus | None = None,
        restated: Mapping[str, Sequence[int]] | None = None,
    ) -> bool:
        found = self.reader.candidates(
            without_frozen(ranges),
            reasons,
            now,
            restated or {},
            status=status,
            judged_before=backfill.created_at,
            schema_version=backfill.selector.get("schema_version"),
            limit=1,
        )
        return bool(found)

    def _cursor(self, backfill: Backfill) -> PartitionKey | None:
        return self.backfills.get(backfill.backfill_id).cursor

    def _partitions(self, backfill: Backfill, now: datetime) -> BackfillPartitions:
        return partitions_of(self.backfills, self.settings, backfill, now)


def _reasons(backfill: Backfill) -> list[PlanReason]:
    """The reasons for which the backfill attempts partitions. A backfill that moves history to another schema version
    attempts accepted partitions only."""
    again = [PlanReason.SUCCESS, PlanReason.RESTATE, PlanReason.RETRY] if backfill.reprocess else []
    pending = [] if backfill.selector.get("schema_version") else [PlanReason.MISSING, PlanReason.REQUEUED]
    return [*pending, *again]


def _recent(span: ExpectedRange, days: int) -> ExpectedRange:
    over = span.over or span.last
    return replace(span, first=max(span.first, over - timedelta(days=days - 1)))

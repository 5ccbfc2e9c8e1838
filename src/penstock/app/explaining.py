"""Why a partition is as it is, and what stands in its way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date as Day
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from penstock.app.keeping import Keeping
from penstock.clock import last_day_over
from penstock.control.ranges import count_partitions, iter_pages, without_frozen
from penstock.control.requeue import SCANNED
from penstock.control.select import Selection, due_range
from penstock.lifecycle import Act, Outcome, PartitionStatus, PlanReason
from penstock.partition import AssetKind, PartitionKey, RunId
from penstock.state.records import Attempt, PartitionView

if TYPE_CHECKING:
    from penstock.control.why import Why
    from penstock.warehouse.pointers import Pointer
    from penstock.warehouse.withdrawn import DemotedRun


class Explaining(Keeping):
    """Answers about single partitions and about sources, in words."""

    def why(self, key: PartitionKey) -> Why:
        from penstock.control.breaker import describe
        from penstock.control.why import Circumstances, explain

        [view] = self.reader.views(self.ranges(Selection(keys=(key,))))
        attempts, pointer = self.reader.attempts(key), self.pointers.pointer(key)
        model = self.settings.models.get(key.query_name) if key.kind is AssetKind.DERIVED else None
        around = Circumstances(
            due_range(self.settings, key, self.now()),
            self.standings([key])[key],
            self.pointers.due_since(key),
            self.is_terminal(view),
            describe(self.breakers.get(key.source), self.now()),
            self.maturity(view),
            self._tasks_of(key, view.open_run_id) if view.open_run_id else (),
            self._lacking(key) if model else (),
            self._approvable(view, attempts),
            self._demoted_inputs(view, pointer) if model else (),
            model is not None and model.on_demotion == "hide",
            model is None or model.refresh,
        )
        appointed = replace(view, control=replace(view.control, next_run_at=self.next_run_at(view)))
        return explain(appointed, pointer, attempts, around)

    def _approvable(self, view: PartitionView, attempts: Sequence[Attempt]) -> bool:
        """Whether an operator may approve the last attempt: only guards held it back, and nothing else refuses it."""
        from penstock.contract.contract import Contract
        from penstock.control.approval import held_back_by_guards
        from penstock.state.authority import Return, refusal

        last = next((attempt for attempt in attempts if attempt.run_id == view.last_attempt_run_id), None)
        if last is None or last.outcome is not Outcome.FAILED or last.approved_at is not None:
            return False
        by_run = {str(attempt.run_id): attempt for attempt in attempts}
        if refusal(Return(view.key, Act.APPROVE, view.state, last, by_run)) is not None:
            return False
        body = self.reader.contract(last.contract_fingerprint)
        return body is not None and held_back_by_guards(last, Contract.from_body(body))

    def _demoted_inputs(self, view: PartitionView, pointer: Pointer | None) -> tuple[DemotedRun, ...]:
        """The demoted runs that went into what readers get of a slice of a model, or are about to get."""
        from penstock.warehouse.withdrawn import demoted_inputs

        served = pointer.run_id if pointer is not None and pointer.available else None
        trusted = view.state.current_run_id if view.state.status is PartitionStatus.SUCCESS else None
        with self.database.snapshot() as connection:
            runs = [run for run in dict.fromkeys((served, trusted)) if run is not None]
            found = [one for run in runs for one in demoted_inputs(connection, view.key, run)]
        return tuple(dict.fromkeys(found))

    def _lacking(self, key: PartitionKey) -> tuple[str, ...]:
        """What a slice of a model needs and cannot read, table by table."""
        from penstock.warehouse.readiness import Rule, usable

        rule = Rule(self.settings.models[key.query_name].require)
        words = []
        for table, keys in self.derived().inputs(key).items():
            there = usable(self.database, self.ranges(Selection(keys=tuple(keys)))) if keys else set()
            absent = [one for one in keys if one not in there]
            if len(keys) - len(absent) < rule.needed(len(keys)):
                few = ", ".join(map(str, absent[:3])) + (" ..." if len(absent) > 3 else "")
                words.append(f"{len(absent):,} of {len(keys):,} slices of {table} cannot be read: {few}")
        return tuple(words)

    def _tasks_of(self, key: PartitionKey, run_id: RunId) -> tuple[str, ...]:
        """What the run that works on a partition has done of it, task by task."""
        from penstock.flow.run_state import RunState

        state = RunState(run_id, self.ledger.news_of_run)
        state.refresh()
        return tuple(f"{stage} {state}" for stage, state in state.states(str(key)).items())

    def troubles(self) -> list[str]:
        """The sources for which not everything is issued, and why."""
        from penstock.control.breaker import describe

        found = (describe(breaker, self.now()) for breaker in self.breakers.all())
        return [words for words in found if words]

    def provisional(self, selection: Selection) -> int:
        """How many trusted partitions their sources may still change."""
        ranges = self.ranges(selection)  # refuses unknown names
        if selection.status not in (None, PartitionStatus.SUCCESS):
            return 0
        recent = []
        for span in ranges:
            restate = self.settings.asset(span.query_name).restate
            if restate is not None and span.over is not None:
                recent.append(replace(span, first=max(span.first, span.over - timedelta(days=restate.days - 1))))
        return self.reader.count(recent, status=PartitionStatus.SUCCESS) if recent else 0

    def settled_until(self, table: str) -> Day | None:
        """The last day of this table that its source will not change any more, for every customer alike."""
        query = next((q for q in self.settings.queries.values() if f"{q.source}.{q.name}" == table), None)
        if query is None or not self.settings.customers:
            return None
        days = query.restate.days if query.restate else 0
        return min(last_day_over(self.now(), customer.time_zone) for customer in self.settings.customers) - timedelta(
            days
        )

    def terminal(
        self, selection: Selection, *, after: PartitionKey | None = None, limit: int | None = None
    ) -> list[tuple[PartitionView, str]]:
        """The failed partitions that nothing will try again, each with why, in key order: at most `limit` after a
        key."""
        ranges, now = self.ranges(selection), self.now()
        if selection.status not in (None, PartitionStatus.FAILED):
            return []
        found = self.reader.views(ranges, terminal_at=now, after=after, limit=limit)
        judged = ((view, self.is_terminal(view)) for view in found)
        return [(view, why) for view, why in judged if why is not None]

    def terminal_count(self, selection: Selection) -> int:
        """The number of partitions that `terminal` lists."""
        ranges = self.ranges(selection)
        if selection.status not in (None, PartitionStatus.FAILED):
            return 0
        return self.reader.count(ranges, terminal_at=self.now())

    def held_up(self, selection: Selection) -> dict[str, int]:
        """How many partitions are not attempted, by what stands in their way."""
        from penstock.control.breaker import describe
        from penstock.control.plan import DUE

        ranges, now = self.ranges(selection), self.now()
        reasons = self.reader.reasons(ranges, now, {}, selection.status)
        found = {"retry": 0, "operator": 0, "terminal": 0}
        pages = iter_pages(ranges, SCANNED)
        for view in (v for some in pages for v in self.reader.views(some, status=selection.status, last_failed=True)):
            if view.open_run_id is not None or view.control.paused_at is not None:
                continue
            if self.is_terminal(view) is not None:
                found["terminal"] += 1
            else:
                found["retry" if self.next_run_at(view) is not None else "operator"] += 1
        troubled = {breaker.source for breaker in self.breakers.all() if describe(breaker, now)}
        blocked = [span for span in without_frozen(ranges) if span.source in troubled]
        due = self.reader.reasons(blocked, now, {}, selection.status) if blocked else {}
        return found | {
            "paused": reasons.get(PlanReason.PAUSED, 0),
            "blocked": reasons.get(PlanReason.WAITING, 0) + sum(due.get(reason, 0) for reason in DUE),
            "open": reasons.get(PlanReason.OPEN, 0),
            "publication": self.pointers.waiting(),
        }

    def is_terminal(self, view: PartitionView) -> str | None:
        """Why this partition is given up for good; None if it is not."""
        from penstock.control.retry import terminal

        if view.state.status is not PartitionStatus.FAILED:
            return None
        return terminal(self.settings.asset(view.key.query_name).retry, view.control, view.expires_at, self.now())

    def next_run_at(self, view: PartitionView) -> datetime | None:
        """When this partition is attempted again by itself, by the policy of today; None if it is not."""
        from penstock.control.retry import next_retry

        return next_retry(self.settings.asset(view.key.query_name).retry, view, self.now())

    def maturity(self, view: PartitionView) -> str | None:
        """Whether the source may still change this day (provisional or settled); None while no run is trusted, and for
        models, which follow what they are made from."""
        from penstock.control.restate import maturity

        if view.state.status is not PartitionStatus.SUCCESS or view.key.kind is AssetKind.DERIVED:
            return None
        over = last_day_over(self.now(), self.settings.customer(view.key.customer_id).time_zone)
        return maturity(self.settings.query(view.key.query_name), view.key.logical_date, over)

    def frozen(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Those of these partitions that their sources cannot be asked for any more."""
        now = self.now()
        return {key for key in keys if due_range(self.settings, key, now).is_frozen(key.logical_date)}

    def frozen_in(self, selection: Selection) -> int:
        """How many expected partitions of a selection are frozen."""
        ranges = self.ranges(selection)
        return count_partitions(ranges) - count_partitions(without_frozen(ranges))

    def partition(self, key: str) -> PartitionHandle:
        """One partition, to ask about it."""
        return PartitionHandle(self, PartitionKey.parse(key))


class PartitionHandle:
    """Questions about one partition."""

    def __init__(self, workspace: Explaining, key: PartitionKey) -> None:
        self._workspace = workspace
        self.key = key

    def why(self) -> Why:
        return self._workspace.why(self.key)

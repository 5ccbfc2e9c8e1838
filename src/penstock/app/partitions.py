"""State of partitions: why, terminal, held up, provisional, frozen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date as Day
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.clock import last_day_over
from penstock.contract.contract import Contract
from penstock.control.api_sunset import ending_apis
from penstock.control.breaker import describe
from penstock.control.ranges import count_partitions, iter_pages, without_frozen
from penstock.control.requeue import MOVED, SCANNED
from penstock.control.select import Selection, due_range
from penstock.errors import PenstockError
from penstock.expected import ExpectedRange
from penstock.flow.trace import TRACEPARENT, trace_id_of
from penstock.lifecycle import Act, Outcome, PartitionStatus, PlanReason
from penstock.partition import AssetKind, PartitionKey, RunId
from penstock.source.concurrency import requests_in_flight
from penstock.source.registry import hooks_of
from penstock.state.records import Attempt, PartitionView
from penstock.warehouse.withdrawn import demoted_inputs

if TYPE_CHECKING:
    from penstock.app.status import StatusService
    from penstock.control.why import Why
    from penstock.warehouse.pointers import Pointer
    from penstock.warehouse.withdrawn import DemotedRun


class PartitionService:
    """Answers questions about partitions and sources. It changes nothing."""

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status

    def handle(self, key: str) -> PartitionHandle:
        """One partition, for questions about it.

        >>> ws.partitions.handle("demo/1000000001/campaign_daily/2024-06-01").why()
        """
        return PartitionHandle(self, PartitionKey.parse(key))

    def views(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionView]:
        """State, last attempt and control metadata of a few partitions.

        >>> ws.partitions.views([key])[key].state.status
        """
        if not keys:
            return {}
        return {view.key: view for view in self.find(Selection(keys=tuple(keys)))}

    def find(
        self, selection: Selection | None = None, *, after: PartitionKey | None = None, limit: int | None = None
    ) -> list[PartitionView]:
        """The expected partitions of a selection with state, last attempt and marks, in key order: at most `limit`
        after the key `after`.

        >>> ws.partitions.find(Selection(status="failed"), limit=100)
        """
        chosen = selection or Selection()
        ranges = self._context.ranges(chosen)
        return self._context.state.views(ranges, status=chosen.status, after=after, limit=limit)

    def why(self, key: PartitionKey | str) -> Why:
        """Why a partition is in its state, what blocks it and what happens next. `print` shows it as text.

        >>> print(ws.partitions.why("demo/1000000001/campaign_daily/2024-06-01"))
        """
        from penstock.control.missing_causes import source_wait
        from penstock.control.why import Circumstances, explain

        key = PartitionKey.parse(key) if isinstance(key, str) else key
        [view] = self.find(Selection(keys=(key,)))
        attempts, pointer = self._context.state.attempts(key), self._context.pointers.pointer(key)
        model = self._context.settings.models.get(key.query_name) if key.kind is AssetKind.DERIVED else None
        guard = self._context.guard(by_hand=False)
        quota = guard.quota(key.source)
        around = Circumstances(
            due_range(self._context.settings, key, self._context.now()),
            self._status.standings([key])[key],
            self._context.pointers.due_since(key),
            self.terminal_reason(view),
            guard.source_error(key.source),
            self.maturity(view),
            self._tasks_of(key, view.open_run_id) if view.open_run_id else (),
            self._missing_inputs(key) if model else (),
            self._approvable(view, attempts),
            self._demoted_inputs(view, pointer) if model else (),
            model is not None and model.on_demotion == "hide",
            model is None or model.refresh,
            None if model else requests_in_flight(self._context.settings.sources[key.source]),
            quota.renews_at() if quota is not None and not quota.left() else None,
            None if model else source_wait(self._context.breakers.get(key.source), quota, self._context.now()),
            self._context.now(),
        )
        scheduled = replace(view, control=replace(view.control, next_run_at=self.next_run_at(view)))
        return explain(scheduled, pointer, attempts, around)

    def _approvable(self, view: PartitionView, attempts: Sequence[Attempt]) -> bool:
        """Whether an operator may approve the last attempt: only guards rejected it, and no other rule refuses it."""
        last = next((attempt for attempt in attempts if attempt.run_id == view.last_attempt_run_id), None)
        if last is None or last.outcome is not Outcome.FAILED or last.approved_at is not None or not last.complaints:
            return False  # guards are checks: what they reject has complaints
        from penstock.control.approval import held_back_by_guards
        from penstock.state.authority import AuthorityRequest, refusal

        by_run = {str(attempt.run_id): attempt for attempt in attempts}
        if refusal(AuthorityRequest(view.key, Act.APPROVE, view.state, last, by_run)) is not None:
            return False
        body = self._context.state.contract(last.contract_fingerprint)
        return body is not None and held_back_by_guards(last, Contract.from_body(body))

    def _demoted_inputs(self, view: PartitionView, pointer: Pointer | None) -> tuple[DemotedRun, ...]:
        """The demoted runs among the inputs of a model partition: of the run that readers see, and of the trusted
        run."""
        served = pointer.run_id if pointer is not None and pointer.available else None
        trusted = view.state.current_run_id if view.state.status is PartitionStatus.SUCCESS else None
        with self._context.database.snapshot() as connection:
            runs = [run for run in dict.fromkeys((served, trusted)) if run is not None]
            found = [one for run in runs for one in demoted_inputs(connection, view.key, run)]
        return tuple(dict.fromkeys(found))

    def _missing_inputs(self, key: PartitionKey) -> tuple[str, ...]:
        """The inputs that a model partition needs and that cannot be read: one message per table."""
        from penstock.warehouse.readiness import Rule, usable

        rule = Rule(self._context.settings.models[key.query_name].require)
        messages = []
        for table, keys in self._context.derived().inputs(key).items():
            there = usable(self._context.database, self._context.ranges(Selection(keys=tuple(keys)))) if keys else set()
            absent = [one for one in keys if one not in there]
            if len(keys) - len(absent) < rule.needed(len(keys)):
                few = ", ".join(map(str, absent[:3])) + (" ..." if len(absent) > 3 else "")
                messages.append(f"{len(absent):,} of {len(keys):,} partitions of {table} cannot be read: {few}")
        return tuple(messages)

    def _tasks_of(self, key: PartitionKey, run_id: RunId) -> tuple[str, ...]:
        """The state of each task of a partition in the run that works on it."""
        from penstock.flow.run_state import RunState

        run = RunState(run_id, self._context.ledger.news_of_run)
        run.refresh()
        return tuple(f"{stage} {state}" for stage, state in run.states(str(key)).items())

    def source_errors(self) -> list[str]:
        """The sources for which attempts are held back, each with the reason, and those whose API ends soon.

        >>> ws.partitions.source_errors()
        """
        now = self._context.now()
        found = (describe(breaker, now) for breaker in self._context.breakers.all())
        ends = ending_apis(self._context.settings.sources.values(), hooks_of, now.date())
        return [*(message for message in found if message), *(end.describe(now.date()) for end in ends)]

    def unfinished_runs(self) -> list[str]:
        """A message for each killed run that no later run continues; empty for a database role that may not read runs.

        >>> ws.partitions.unfinished_runs()
        """
        from penstock.control.unfinished import unfinished_runs

        try:
            return [run.message for run in unfinished_runs(self._context.state, self._context.ledger)]
        except PenstockError:
            return []

    def provisional_count(self, selection: Selection) -> int:
        """The number of trusted partitions that their source may still change.

        >>> ws.partitions.provisional_count(Selection())
        """
        ranges = self._context.ranges(selection)  # refuses unknown names
        if selection.status not in (None, PartitionStatus.SUCCESS):
            return 0
        days = {name: asset.restate.days for name, asset in self._context.settings.assets.items() if asset.restate}
        recent = [
            ExpectedRange(
                span.source,
                span.customer_id,
                span.query_name,
                max(span.first, span.over - timedelta(days=days[span.query_name] - 1)),
                span.last,
            )
            for span in ranges
            if span.query_name in days and span.over is not None
        ]
        return self._context.state.count(recent, status=PartitionStatus.SUCCESS) if recent else 0

    def settled_until(self, table: str) -> Day | None:
        """The last day of this table that its source no longer changes, for every customer; None for a model.

        >>> ws.partitions.settled_until("demo.campaign_daily")
        """
        query = next((q for q in self._context.settings.queries.values() if f"{q.source}.{q.name}" == table), None)
        if query is None or not self._context.settings.customers:
            return None
        days = query.restate.days if query.restate else 0
        return min(
            last_day_over(self._context.now(), customer.time_zone) for customer in self._context.settings.customers
        ) - timedelta(days)

    def first_expected(self) -> dict[str, Day]:
        """The first expected day of each table; tables of which no day is over yet are left out.

        >>> ws.partitions.first_expected()["demo.campaign_daily"]
        """
        found: dict[str, Day] = {}
        for span in self._context.ranges(Selection()):
            table = f"{span.source}.{span.query_name}"
            found[table] = min(span.first, found.get(table, span.first))
        return found

    def terminal(
        self, selection: Selection, *, after: PartitionKey | None = None, limit: int | None = None
    ) -> list[tuple[PartitionView, str]]:
        """The failed partitions that no policy retries, each with the reason, in key order: at most `limit` after the
        key `after`.

        >>> ws.partitions.terminal(Selection(), limit=100)
        """
        ranges, now = self._context.ranges(selection), self._context.now()
        if selection.status not in (None, PartitionStatus.FAILED):
            return []
        found = self._context.state.views(ranges, terminal_at=now, after=after, limit=limit)
        judged = ((view, self.terminal_reason(view)) for view in found)
        return [(view, why) for view, why in judged if why is not None]

    def terminal_count(self, selection: Selection) -> int:
        """The number of partitions that `terminal` lists.

        >>> ws.partitions.terminal_count(Selection())
        """
        ranges = self._context.ranges(selection)
        if selection.status not in (None, PartitionStatus.FAILED):
            return 0
        return self._context.state.count(ranges, terminal_at=self._context.now())

    def held_up(self, selection: Selection) -> dict[str, int]:
        """The number of partitions that are not attempted, by what blocks them.

        >>> ws.partitions.held_up(Selection())["retry"]
        """
        from penstock.control.plan import DUE

        ranges, now = self._context.ranges(selection), self._context.now()
        reasons = self._context.state.reasons(ranges, now, {}, selection.status)
        found = {"retry": 0, "operator": 0, "terminal": 0}
        pages = iter_pages(ranges, SCANNED)
        for view in (
            v for some in pages for v in self._context.state.views(some, status=selection.status, last_failed=True)
        ):
            if view.open_run_id is not None or view.control.paused_at is not None:
                continue
            if self.terminal_reason(view) is not None:
                found["terminal"] += 1
            else:
                found["retry" if self.next_run_at(view) is not None else "operator"] += 1
        guard = self._context.guard(by_hand=False)
        erroneous = {name for name in {span.source for span in ranges} if guard.source_error(name)}
        blocked = [span for span in without_frozen(ranges) if span.source in erroneous]
        due = self._context.state.reasons(blocked, now, {}, selection.status) if blocked else {}
        return found | {
            "paused": reasons.get(PlanReason.PAUSED, 0),
            "blocked": reasons.get(PlanReason.WAITING, 0) + sum(due.get(reason, 0) for reason in DUE),
            "open": reasons.get(PlanReason.OPEN, 0),
            "publication": self._context.pointers.waiting(),
        }

    def terminal_reason(self, view: PartitionView) -> str | None:
        """Why this partition is terminal; None if it is not.

        >>> ws.partitions.terminal_reason(ws.partitions.views([key])[key])
        """
        from penstock.control.retry import terminal

        if view.state.status is not PartitionStatus.FAILED:
            return None
        return terminal(
            self._context.settings.asset(view.key.query_name).retry, view.control, view.expires_at, self._context.now()
        )

    def next_run_at(self, view: PartitionView) -> datetime | None:
        """When the retry policy attempts this partition again; None if it does not.

        >>> ws.partitions.next_run_at(ws.partitions.views([key])[key])
        """
        from penstock.control.retry import next_retry

        return next_retry(self._context.settings.asset(view.key.query_name).retry, view, self._context.now())

    def trace_ids(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """The ids of the traces that attempts belong to, by run; runs that were not traced are left out.

        >>> ws.partitions.trace_ids(ws.context.state.attempts(key))
        """
        filters = self._context.state.run_filters({attempt.run_id for attempt in attempts})
        found = {run_id: trace_id_of(given.get(TRACEPARENT)) for run_id, given in filters.items()}
        return {run_id: trace_id for run_id, trace_id in found.items() if trace_id}

    def maturity(self, view: PartitionView) -> str | None:
        """`provisional` if the source may still change this day, else `settled`; None without a trusted run, and for
        models, which follow their inputs.

        >>> ws.partitions.maturity(ws.partitions.views([key])[key])
        """
        from penstock.control.restate import maturity

        if view.state.status is not PartitionStatus.SUCCESS or view.key.kind is AssetKind.DERIVED:
            return None
        over = last_day_over(self._context.now(), self._context.settings.customer(view.key.customer_id).time_zone)
        return maturity(self._context.settings.query(view.key.query_name), view.key.logical_date, over)

    def frozen_count(self, selection: Selection) -> int:
        """The number of expected partitions that are frozen: their source no longer delivers the day.

        >>> ws.partitions.frozen_count(Selection())
        """
        ranges = self._context.ranges(selection)
        return count_partitions(ranges) - count_partitions(without_frozen(ranges))

    def unmarked(self, selection: Selection, until: datetime | None = None) -> list[PartitionKey]:
        """The failed partitions without a terminal mark, in key order: what `mark_terminal` changes; with `until`, only
        those whose last attempt ended no later.

        >>> ws.partitions.unmarked(Selection(customers="1000000001"))
        """
        return list(self.iter_unmarked(selection, until))

    def iter_unmarked(self, selection: Selection, until: datetime | None = None) -> Iterator[PartitionKey]:
        """The partitions of `unmarked`, read in pages.

        >>> next(ws.partitions.iter_unmarked(Selection(customers="1000000001")), None)
        """
        ranges = self._context.ranges(selection)  # refuses unknown names
        if selection.status not in (None, PartitionStatus.FAILED):
            return
        for some in iter_pages(ranges, SCANNED):
            yield from (found.key for found in self._context.state.failed(some, until) if not found.marked)

    def clearable(self, selection: Selection) -> list[PartitionKey]:
        """The terminal partitions with a mark or with failures that count: what `clear_terminal` changes.

        >>> ws.partitions.clearable(Selection(customers="1000000001"))
        """
        return list(self.iter_clearable(selection))

    def iter_clearable(self, selection: Selection) -> Iterator[PartitionKey]:
        """The partitions of `clearable` in key order, read in pages.

        >>> next(ws.partitions.iter_clearable(Selection(customers="1000000001")), None)
        """
        after = None
        while found := self.terminal(selection, after=after, limit=MOVED):
            after = found[-1][0].key
            for view, _ in found:
                if view.control.terminal_at is not None or view.control.failures:
                    yield view.key

    def pausable(self, selection: Selection, limit: int) -> tuple[list[PartitionKey], int]:
        """The partitions that are not paused: the first `limit`, and their number.

        >>> ws.partitions.pausable(Selection(customers="1000000001"), limit=100)
        """
        ranges, state, status = self._context.ranges(selection), self._context.state, selection.status
        found = state.views(ranges, status=status, paused=False, limit=limit)
        return [view.key for view in found], state.count(ranges, status=status, paused=False)

    def resumable(self, selection: Selection, limit: int) -> tuple[list[PartitionKey], int]:
        """The partitions that are paused or held: the first `limit`, and their number.

        >>> ws.partitions.resumable(Selection(customers="1000000001"), limit=100)
        """
        ranges, state, status = self._context.ranges(selection), self._context.state, selection.status
        found = state.views(ranges, status=status, marked=True, limit=limit)
        return [view.key for view in found], state.count(ranges, status=status, marked=True)


class PartitionHandle:
    """One partition, for questions about it."""

    def __init__(self, partitions: PartitionService, key: PartitionKey) -> None:
        self._partitions = partitions
        self.key = key

    def why(self) -> Why:
        """Why this partition is in its state, what blocks it and what happens next. `print` shows it as text.

        >>> print(ws.partition("demo/1000000001/campaign_daily/2024-06-01").why())
        """
        return self._partitions.why(self.key)

"""Plans of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.control.ranges import clip_to_keys, in_key_order, intersect, ranges_of, without_frozen
from penstock.control.select import ExpectedWork, Selection, by_kind, due_range
from penstock.errors import UsageError
from penstock.expected import ExpectedRange
from penstock.lifecycle import PlanReason
from penstock.partition import AssetKind, PartitionKey, new_run_id

if TYPE_CHECKING:
    from penstock.app.model_plans import ModelService
    from penstock.control.plan import Plan
    from penstock.expected import ExpectedRange
    from penstock.state.records import Planned


class PlanService:
    """Plans what a run attempts. A plan is a value: preview and execution use the same one."""

    def __init__(self, context: Context, models: ModelService) -> None:
        self._context = context
        self._models = models

    def preview(self, selection: Selection | None = None, *, reprocess: bool = False, limit: int | None = None) -> Plan:
        """The partitions that `runs.start` attempts now. Counts all of them and lists at most `limit`.

        >>> ws.plans.preview(Selection(since="2024-06-01"), limit=100).total
        """
        found = self._plan(selection or Selection(), reprocess, limit)
        return replace(found, items=found.items[:limit])

    def preview_ranges(
        self, selection: Selection, *, reprocess: bool, limit: int
    ) -> tuple[Plan, Sequence[ExpectedRange]]:
        """The plan of `preview`, and all of its partitions as ranges of days, in key order: a million partitions are
        not listed.

        >>> ws.plans.preview_ranges(Selection(since="2024-06-01"), reprocess=True, limit=100)[1]
        """
        from penstock.control.plan import asked_for
        from penstock.control.restate import schedules

        plan = self._plan(selection, reprocess, limit)
        work, now, reasons = by_kind(self._context.ranges(selection)), self._context.now(), asked_for(reprocess)
        state, restated = self._context.state, schedules(self._context.settings.queries)
        fetched = state.due_ranges(without_frozen(work.fetched), reasons, now, restated, selection.status)
        if plan.is_divided:
            models = state.due_ranges(work.derived, reasons, now, {}, selection.status) if work.derived else []
        else:
            models = ranges_of(sorted(item.key for item in plan.items if item.key.kind is AssetKind.DERIVED))
        return replace(plan, items=plan.items[:limit]), in_key_order([*fetched, *models])

    def _plan(
        self,
        selection: Selection,
        reprocess: bool,
        limit: int | None,
        counted: Callable[[int], None] = lambda total: None,
        within: Sequence[ExpectedRange] | None = None,
    ) -> Plan:
        """The plan with a list of at least `limit` items, if it has so many: a run needs every model partition that
        waits for others or is waited for. A plan that will be split lists fetched partitions only."""
        from penstock.control.plan import asked_for, attempt_reason, preview
        from penstock.control.restate import schedules

        work = by_kind(_limited(self.runnable_ranges(selection), within))
        models = work.derived
        reasons = asked_for(reprocess)
        most = self._context.settings.control.largest_run
        plan = preview(
            self._context.state,
            work.fetched,
            self._context.contracts,
            self._context.now(),
            restated=schedules(self._context.settings.queries),
            reasons=reasons,
            status=selection.status,
            # the inputs of a model must be known one by one, unless the plan is split anyway
            limit=max(most + 1, limit) if models and limit is not None else limit,
            counted=counted,
        )
        if plan.total > most:
            due = self._context.state.reasons(models, self._context.now(), {}, selection.status) if models else {}
            counts = Counter(plan.reasons) + Counter({attempt_reason(reason): due.get(reason, 0) for reason in reasons})
            return replace(plan, counts=counts, is_divided=True)
        if not models:
            return plan
        inside = [item.key for item in plan.items]
        made = self._models.planner().plan(models, inside, self._context.now(), reasons, selection.status)
        return plan.and_models(made.items, made.fan_ins, made.waiting)

    def split(
        self,
        selection: Selection,
        *,
        reprocess: bool,
        may_continue: Callable[[str], bool],
        counted: Callable[[int], None] = lambda total: None,
        within: Sequence[ExpectedRange] | None = None,
    ) -> tuple[Plan, Iterator[Plan]]:
        """The whole plan, and the plans of its runs: one, or, if it is larger than `control.largest_run`, several. Each
        is created when its run begins: newest days first, models last. Leaves out a source whose breaker stays open.
        Calls `counted` with the number of partitions to fetch as soon as it is known. With `within`, plans only
        partitions of these ranges.

        >>> ws.plans.split(Selection(), reprocess=False, may_continue=lambda source: True)
        """
        size = self._context.settings.control.largest_run
        whole = self._plan(selection, reprocess, size + 1, counted, within)
        if not whole.is_divided:
            return whole, iter([whole])
        return replace(whole, items=()), self._batches(selection, reprocess, may_continue, within)

    def _batches(
        self,
        selection: Selection,
        reprocess: bool,
        may_continue: Callable[[str], bool],
        within: Sequence[ExpectedRange] | None,
    ) -> Iterator[Plan]:
        from penstock.control.plan import Plan, asked_for
        from penstock.control.restate import schedules
        from penstock.control.run_splitting import RunBatches

        reasons, size = asked_for(reprocess), self._context.settings.control.largest_run
        restated = schedules(self._context.settings.queries)
        batches = RunBatches(
            self._context.state, self._context.contracts, self._context.now, restated, reasons, selection.status, size
        )

        def work() -> ExpectedWork:
            return by_kind(_limited(self._context.ranges(selection), within))

        yield from batches.of(lambda: work().fetched, may_continue)
        models = work().derived
        if models:
            made = self._models.planner().plan(models, (), self._context.now(), reasons, selection.status)
            if made.items:
                yield Plan(made.items, fan_ins=made.fan_ins, waiting=made.waiting)

    def runnable_ranges(self, selection: Selection) -> list[ExpectedRange]:
        """The selected ranges. Raises if the configuration cannot run, or if a key is not due.

        >>> ws.plans.runnable_ranges(Selection(since="2024-06-01"))
        """
        ranges = self._context.ranges(selection)
        self.refuse_unrunnable(ranges)
        for key in selection.keys:
            self.refuse_not_due(key)
        return ranges

    def refuse_not_due(self, key: PartitionKey) -> None:
        """Raise UsageError if a partition is not due yet, or frozen.

        >>> ws.plans.refuse_not_due(key)
        """
        due = due_range(self._context.settings, key, self._context.now())
        if not due.first <= key.logical_date <= due.last:
            raise UsageError(f"{key} is not due: for this customer and query {due.first} to {due.last} are")
        if due.is_frozen(key.logical_date):
            raise UsageError(
                f"{key} is frozen: {key.source} serves only {due.frozen_before} and later, so no attempt may replace"
                f" that day (sources.{key.source}.keeps defines how long it keeps days)"
            )

    def refuse_unrunnable(self, ranges: Sequence[ExpectedRange]) -> None:
        """Raise, before anything is issued, for fields that changed without a new schema version, and for wrong options
        of sources and queries.

        >>> ws.plans.refuse_unrunnable(ws.context.ranges(Selection()))
        """
        from penstock.control.plan import refuse_changed_fields
        from penstock.source.protocol import RunContext
        from penstock.source.registry import make_source, refuse_queries

        queries = {
            name: contract for name, contract in self._context.contracts.items() if contract.kind is AssetKind.FETCHED
        }
        refuse_changed_fields(self._context.state, queries)  # `learn_contracts` checks the models, one by one
        for name in sorted({found.source for found in by_kind(ranges).fetched}):
            source = make_source(self._context.settings.sources[name], RunContext(new_run_id()))
            refuse_queries(source, self._context.settings.queries_of(name))

    def replan(self, keys: Sequence[PartitionKey], reasons: Sequence[PlanReason]) -> Sequence[Planned]:
        """The items for those of these partitions that are still due: other workers may have finished some."""
        from penstock.control.plan import preview
        from penstock.control.restate import schedules

        wanted = set(keys)
        ranges = clip_to_keys(self._context.ranges(Selection()), keys)
        if not ranges:
            return []
        self.refuse_unrunnable(ranges)
        restated = schedules(self._context.settings.queries)
        work = by_kind(ranges)
        plan = preview(
            self._context.state,
            work.fetched,
            self._context.contracts,
            self._context.now(),
            restated=restated,
            reasons=reasons,
        )
        derived = (
            self._models.planner().still_due(work.derived, wanted, self._context.now(), reasons) if work.derived else []
        )
        return [*(item for item in plan.items if item.key in wanted), *derived]


def _limited(ranges: list[ExpectedRange], within: Sequence[ExpectedRange] | None) -> list[ExpectedRange]:
    return ranges if within is None else intersect(ranges, within)

"""Collects the facts about late days in bulk: a constant number of SQL statements for each table, and for each input
table of a model, whatever the number of days."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

from penstock.app.context import Context
from penstock.config.assets import Asset, Model
from penstock.control.completion import run_end, usual_completion
from penstock.control.deadlines import NO_DEADLINE, Deadline, day_end
from penstock.control.lateness import DayFacts, DayLateness, Missing, MissingCause, Punctuality, day_lateness
from penstock.control.missing_causes import SourceWait, cause_of, frozen_state, merged, source_wait
from penstock.control.missing_inputs import InputDays, LackingInputs
from penstock.control.ranges import clip_days, subtract, without_frozen
from penstock.control.requested_days import RequestedDays, requested_days
from penstock.control.retry import terminal
from penstock.control.select import Selection
from penstock.errors import UsageError
from penstock.expected import ExpectedRange
from penstock.partition import AssetKind, PartitionKey
from penstock.state.missing import MissingCount, MissingReader, MissingState
from penstock.state.records import Breaker, PartitionView
from penstock.warehouse.readiness import Rule, day_counts

DeadlineOf = Callable[[date], datetime]
CompletionTimes = Callable[[Asset, Rule, date, str], Mapping[date, timedelta]]  # of days before one, by rule and zone
_INPUTS_MATTER = (MissingState.DUE, MissingState.WITHDRAWN)
_EXPLAINED = (MissingCause.TERMINAL, MissingCause.FAILED_CHECK, MissingCause.WAITING_FOR_RETRY, MissingCause.PAUSED)


@dataclass(slots=True)
class LatenessFacts:
    """The facts of one report, at the moment `now`."""

    context: Context
    now: datetime
    completion_times: CompletionTimes
    _breakers: dict[str, Breaker] | None = None
    _waits: dict[str, SourceWait | None] = field(default_factory=dict)

    def days(self, asset: Asset, first: date, last: date, rule: Rule, deadline_of: DeadlineOf) -> list[DayLateness]:
        """The expected days of a table from `first` to `last`; empty if nothing is expected on them."""
        asked = self._requested(asset, first, last)
        return [] if asked is None else self.of(asset, asked, rule, deadline_of)

    def of(self, asset: Asset, asked: RequestedDays, rule: Rule, deadline_of: DeadlineOf) -> list[DayLateness]:
        """The requested days of a table."""
        counts = day_counts(self.context.database, asked.ranges)
        unready = {one.day for one in counts if not rule.holds(one)}
        facts = self._facts(asset, asked, unready, deadline_of) if unready else {}
        found = []
        for one in counts:
            known = facts.get(one.day, DayFacts(0, 0))
            known = replace(known, required=rule.needed(one.expected), available=one.available)
            known = known if one.day not in unready else self._with_history(asset, rule, one.day, known)
            found.append(day_lateness(one.table, one.day, one.expected, known, deadline_of(one.day), self.now))
        return found

    def _requested(self, asset: Asset, first: date, last: date) -> RequestedDays | None:
        selection = Selection((), asset.source, (), (asset.name,), first, last)
        try:
            return requested_days(self.context.settings, f"{asset.source}.{asset.name}", selection, self.now)
        except UsageError:  # nothing is expected on these days
            return None

    def _facts(
        self, asset: Asset, asked: RequestedDays, days: Collection[date], deadline_of: DeadlineOf
    ) -> dict[date, DayFacts]:
        due = clip_days(asked.due, min(days), max(days))
        reader = MissingReader(self.context.database, self.context.state)
        counted = [one for one in self._counted(reader, due) if one.day in days]
        lacking = self._lacking(asset, reader, due, counted) if isinstance(asset, Model) else None
        views = self._views([one.example for one in counted])
        ends = self._run_ends(reader, counted)
        all_inputs = self._inputs(lacking, days, deadline_of) if lacking is not None else {}
        not_over = subtract(asked.ranges, asked.due)
        found = {}
        for day in days:
            mine = [one for one in counted if one.day == day]
            inputs = all_inputs.get(day, ())
            missing = [*self._not_due(not_over, day)]
            for one in mine:
                missing += self._missing(asset, one, views.get(one.example), lacking, inputs)
            runs = [ends[one.run_id] for one in mine if one.run_id is not None]
            known = [at for at in runs if at is not None]
            found[day] = DayFacts(
                0, 0, merged(missing), inputs, max(known) if known and len(known) == len(runs) else None
            )
        return found

    def _counted(self, reader: MissingReader, due: Sequence[ExpectedRange]) -> list[MissingCount]:
        served = without_frozen(due)
        frozen = [] if len(served) == len(due) and served == list(due) else subtract(due, served)
        found = reader.counts(served, self.now) if served else []
        for one in reader.counts(frozen, self.now) if frozen else ():
            found.append(replace(one, state=frozen_state(one.state)))
        return found

    def _missing(
        self,
        asset: Asset,
        one: MissingCount,
        view: PartitionView | None,
        lacking: LackingInputs | None,
        inputs: Sequence[DayLateness],
    ) -> Iterator[Missing]:
        """The causes of the partitions with one state; those of a model may or may not lack inputs."""
        wait = self._wait(asset.source) if one.example.kind is AssetKind.FETCHED else None
        without = lacking.keys(one.day, one.state) if lacking is not None and one.state in _INPUTS_MATTER else ()
        if without and lacking is not None:
            times = [known.expected_at for known in inputs]
            until = max((at for at in times if at is not None), default=None) if all(times) else None
            lacks = lacking.describe(without[0])
            yield Missing(MissingCause.WAITING_FOR_INPUTS, len(without), until, without[0], lacks)
        if one.count > len(without):
            cause = cause_of(one.state, wait, lacks_inputs=False)
            example = one.example if one.example not in without else None
            source_caused = wait is not None and wait.cause is cause
            detail = wait.detail if wait is not None and source_caused else _detail(cause, one, view, self.now)
            until = self._until(cause, one, wait if source_caused else None)
            if one.state is MissingState.TERMINAL and view is not None:
                detail = self._terminal(asset, view)
            yield Missing(cause, one.count - len(without), until, example, detail)

    def _until(self, cause: MissingCause, one: MissingCount, wait: SourceWait | None) -> datetime | None:
        """When the cause ends for the last partition, which may wait longer than its source; the next probe of an open
        breaker. None for a time that has passed."""
        times = [wait.until if wait else None, one.until if wait is None or cause is not MissingCause.BREAKER else None]
        return max((at for at in times if at is not None and at > self.now), default=None)

    def _terminal(self, asset: Asset, view: PartitionView) -> str | None:
        reason = terminal(asset.retry, view.control, view.expires_at, self.now)
        return f"{reason}; {view.last_attempt_error}" if reason and view.last_attempt_error else reason

    def _not_due(self, not_over: Sequence[ExpectedRange], day: date) -> Iterator[Missing]:
        """The partitions whose day is not over in the time zone of their account."""
        spans = clip_days(not_over, day, day)
        if spans:
            zones = {customer.id: customer.time_zone for customer in self.context.settings.customers}
            mine = {zones[span.customer_id] for span in spans if span.customer_id in zones}
            until = max((day_end(day, zone) for zone in mine or set(zones.values())), default=day_end(day, "UTC"))
            span = min(spans, key=lambda one: one.customer_id)
            key = PartitionKey(span.source, span.customer_id, span.query_name, day)
            yield Missing(MissingCause.NOT_DUE, len(spans), max(until, self.now), key)

    def _wait(self, source: str) -> SourceWait | None:
        if source not in self._waits:
            if self._breakers is None:
                self._breakers = {breaker.source: breaker for breaker in self.context.breakers.all()}
            quota = self.context.guard(by_hand=False).quota(source)
            self._waits[source] = source_wait(self._breakers.get(source, Breaker(source)), quota, self.now)
        return self._waits[source]

    def _views(self, examples: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionView]:
        if not examples:
            return {}
        ranges = self.context.ranges(Selection(keys=tuple(examples)))
        return {view.key: view for view in self.context.state.views(ranges)}

    def _run_ends(self, reader: MissingReader, counted: Sequence[MissingCount]) -> Mapping[str, datetime | None]:
        runs = {one.run_id for one in counted if one.run_id is not None}
        return {run: run_end(progress, self.now) for run, progress in reader.run_progress(runs).items()}

    def _lacking(
        self, model: Model, reader: MissingReader, due: Sequence[ExpectedRange], counted: Sequence[MissingCount]
    ) -> LackingInputs:
        """The missing partitions of a model whose inputs cannot be read."""
        states = sorted({one.state for one in counted if one.state in _INPUTS_MATTER})
        keys = {state: reader.keys(due, [state], self.now) for state in states}
        return LackingInputs.of(model, self.context.derived(), keys, reader.unusable)

    def _inputs(
        self, lacking: LackingInputs, days: Collection[date], deadline_of: DeadlineOf
    ) -> dict[date, tuple[DayLateness, ...]]:
        """The days of the inputs that are not ready, by the day of the model and by its rule. An input without a
        deadline has the earliest one of the days that need it."""
        needed = [(day, one) for day in sorted(days) for one in lacking.tables(day)]
        found: dict[date, list[DayLateness]] = {}
        for name in dict.fromkeys(one.name for _, one in needed):
            mine = [(day, one) for day, one in needed if one.name == name]
            asset = self.context.settings.asset(name)
            own = Deadline.of(asset.freshness)
            first, last = min(one.first for _, one in mine), max(one.last for _, one in mine)

            def earliest(input_day: date, mine: Sequence[tuple[date, InputDays]] = mine) -> datetime:
                times = [deadline_of(day) for day, one in mine if one.first <= input_day <= one.last]
                return min(times, default=NO_DEADLINE)

            lateness = self.days(asset, first, last, mine[0][1].rule, own.moment if own else earliest)
            unready = [one for one in lateness if one.punctuality is not Punctuality.READY]
            for day, one in mine:
                found.setdefault(day, []).extend(late for late in unready if one.first <= late.day <= one.last)
        return {day: tuple(inputs) for day, inputs in found.items()}

    def _with_history(self, asset: Asset, rule: Rule, day: date, facts: DayFacts) -> DayFacts:
        zone = asset.freshness.time_zone if asset.freshness else "UTC"
        usual = usual_completion(day, day_end(day, zone), self.completion_times(asset, rule, day, zone), self.now)
        return replace(facts, usual_at=usual.at, overdue=usual.overdue)


def _detail(cause: MissingCause, one: MissingCount, view: PartitionView | None, now: datetime) -> str | None:
    if one.state is MissingState.FROZEN:
        return "its source no longer serves the day"
    if cause is MissingCause.IN_PROGRESS:
        return f"run {one.run_id}"
    if view is None or cause not in _EXPLAINED:
        return None
    if cause is MissingCause.PAUSED:
        return f"by {view.control.paused_by}" + (
            f": {view.control.paused_reason}" if view.control.paused_reason else ""
        )
    error = view.last_attempt_error or view.state.error_message
    return f"{view.last_attempt_error_class}: {error}" if view.last_attempt_error_class else error

"""What should happen: plans of runs, rounds and models, and backfills."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.app.acting import Acting
from penstock.control.select import Selection, by_kind, due_range, due_times
from penstock.errors import UsageError
from penstock.expected import ExpectedRange
from penstock.lifecycle import PlanReason
from penstock.partition import MODELS, AssetKind, PartitionKey, new_run_id, new_ulid
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.control.models import ModelPlan, ModelPlanner, TodaysModels
    from penstock.control.plan import Plan
    from penstock.control.requeue import RetryPage, RetryPreview
    from penstock.flow.graph import FanIn
    from penstock.state.backfills import Backfill
    from penstock.state.records import Planned


log = logging.getLogger(__name__)


class Planning(Acting):
    """Plans are values; nothing here works on data."""

    def plan(self, selection: Selection, *, reprocess: bool = False, limit: int | None = None) -> Plan:
        """What `run` would attempt now; with `limit` all of it is counted, and only so much listed."""
        found = self._plan(selection, reprocess, limit)
        return replace(found, items=found.items[:limit])

    def _plan(self, selection: Selection, reprocess: bool, limit: int | None) -> Plan:
        """The plan before its list is cut: a run needs every slice of a model that is waited for or waits. So many are
        listed at least, as far as there are; of one that will be divided, what is fetched and not what is made."""
        from penstock.control.plan import asked_for, attempt_reason, preview
        from penstock.control.restate import schedules

        work = by_kind(self._allowed(selection))
        models = work.derived
        reasons = asked_for(reprocess)
        most = self.settings.control.largest_run
        plan = preview(
            self.reader,
            work.fetched,
            self.contracts,
            self.now(),
            restated=schedules(self.settings.queries),
            reasons=reasons,
            status=selection.status,
            # what a model waits for must be known one by one, unless that is too much anyway
            limit=max(most + 1, limit) if models and limit is not None else limit,
        )
        if plan.total > most:
            due = self.reader.reasons(models, self.now(), {}, selection.status) if models else {}
            counts = Counter(plan.reasons) + Counter({attempt_reason(reason): due.get(reason, 0) for reason in reasons})
            return replace(plan, counts=counts, is_divided=True)
        if not models:
            return plan
        inside = [item.key for item in plan.items]
        made = self._model_planner().plan(models, inside, self.now(), reasons, selection.status)
        return plan.and_models(made.items, made.fan_ins, made.waiting)

    def plans(
        self, selection: Selection, *, reprocess: bool, may_go_on: Callable[[str], bool]
    ) -> tuple[Plan, Iterator[Plan]]:
        """What `run` attempts, as a whole and as the plans of its runs: one; or if that is too large, several, each
        made when its turn comes, newest days first and models last. A source that may not go on is left out."""
        size = self.settings.control.largest_run
        whole = self._plan(selection, reprocess, size + 1)
        if not whole.is_divided:
            return whole, iter([whole])
        return replace(whole, items=()), self._portions(selection, reprocess, may_go_on)

    def _portions(self, selection: Selection, reprocess: bool, may_go_on: Callable[[str], bool]) -> Iterator[Plan]:
        from penstock.control.plan import Plan, asked_for
        from penstock.control.restate import schedules
        from penstock.control.run_splitting import RunBatches

        reasons, size = asked_for(reprocess), self.settings.control.largest_run
        restated = schedules(self.settings.queries)
        portions = RunBatches(self.reader, self.contracts, self.now, restated, reasons, selection.status, size)
        yield from portions.of(lambda: by_kind(self.ranges(selection)).fetched, may_go_on)
        models = by_kind(self.ranges(selection)).derived
        if models:
            made = self._model_planner().plan(models, (), self.now(), reasons, selection.status)
            if made.items:
                yield Plan(made.items, fan_ins=made.fan_ins, waiting=made.waiting)

    def _allowed(self, selection: Selection) -> list[ExpectedRange]:
        """The selected ranges; refuses what cannot run as it is configured, and days that are not due."""
        ranges = self.ranges(selection)
        self._refuse_what_cannot_run(ranges)
        for key in selection.keys:
            self._refuse_what_is_not_due(key)
        return ranges

    def _model_planner(self) -> ModelPlanner:
        from penstock.control.models import ModelPlanner
        from penstock.warehouse.readiness import usable

        return ModelPlanner(
            self.reader,
            self.derived(),
            self.contracts,
            lambda ranges: usable(self.database, ranges),
            self._overtaken_models,
        )

    def _overtaken_models(self) -> list[PartitionKey]:
        """Slices of models whose inputs or code are not those that they were made from. None while the projections are
        damaged: a run that fetches what is due does not wait for them."""
        from penstock.projections.manifest import ProjectionsLost

        try:
            board = self.board(Selection(source=MODELS))
            return [found.key for found in board.page("(overtaken OR outdated) AND available", after=None, limit=None)]
        except ProjectionsLost as lost:
            log.warning("models.stale_unknown: stale slices of models are not made again, because %s", lost)
            return []

    def _refuse_what_is_not_due(self, key: PartitionKey) -> None:
        due = due_range(self.settings, key, self.now())
        if not due.first <= key.logical_date <= due.last:
            raise UsageError(f"{key} is not due: for this customer and query {due.first} to {due.last} are")
        if due.is_frozen(key.logical_date):
            raise UsageError(
                f"{key} is frozen: {key.source} can only be asked for {due.frozen_before} and later, so nothing may"
                f" replace what is known of that day (sources.{key.source}.keeps says for how long it keeps days)"
            )

    def _refuse_what_cannot_run(self, ranges: Sequence[ExpectedRange]) -> None:
        """Before anything is issued: fields that changed without a new version, bad options of sources and queries."""
        from penstock.control.plan import refuse_changed_fields
        from penstock.source.protocol import RunContext
        from penstock.source.registry import make_source, refuse_queries

        queries = {name: contract for name, contract in self.contracts.items() if contract.kind is AssetKind.FETCHED}
        refuse_changed_fields(self.reader, queries)  # models are judged one by one, when Spark has looked at them
        for name in sorted({found.source for found in by_kind(ranges).fetched}):
            source = make_source(self.settings.sources[name], RunContext(new_run_id()))
            refuse_queries(source, self.settings.queries_of(name))

    def _models_of_round(self, items: Sequence[Planned]) -> ModelPlan:
        """What of the models can be made with what this round brings, or is due anyway."""
        from penstock.control.models import ModelPlan
        from penstock.control.plan import DUE

        models = self.ranges(Selection(source=MODELS)) if self.settings.models else []
        if not models:
            return ModelPlan()
        return self._model_planner().plan(models, [item.key for item in items], self.now(), DUE)

    def _under_todays_models(
        self, spark: SparkSession, items: Sequence[Planned], fan_ins: Sequence[FanIn] = ()
    ) -> TodaysModels:
        """The plan, with the contracts of models as Spark understands their definitions now, and without the slices of
        models that cannot be made."""
        from penstock.control.models import TodaysModels

        if not any(item.key.kind is AssetKind.DERIVED for item in items):
            return TodaysModels(items, fan_ins)
        broken = self._learn_models(spark)
        prints = {name: contract.fingerprint for name, contract in self.contracts.items()}
        kept = [item for item in items if item.key.kind is AssetKind.FETCHED or item.key.query_name not in broken]
        there = {item.key for item in kept}
        return TodaysModels(
            [replace(item, contract_fingerprint=prints[item.key.query_name]) for item in kept],
            [fan_in for fan_in in fan_ins if fan_in.waiting in there],
            len(items) - len(kept),
            [broken[name] for name in sorted({item.key.query_name for item in items if item.key not in there})],
        )

    def _replan(self, keys: Sequence[PartitionKey], reasons: Sequence[PlanReason]) -> Sequence[Planned]:
        """What of these is still due; the rest was done by somebody else meanwhile."""
        from penstock.control.plan import preview
        from penstock.control.ranges import clip_to_keys
        from penstock.control.restate import schedules

        wanted = set(keys)
        ranges = clip_to_keys(self.ranges(Selection()), keys)
        if not ranges:
            return []
        self._refuse_what_cannot_run(ranges)
        restated = schedules(self.settings.queries)
        work = by_kind(ranges)
        made = work.derived
        plan = preview(self.reader, work.fetched, self.contracts, self.now(), restated=restated, reasons=reasons)
        derived = self._model_planner().still_due(made, wanted, self.now(), reasons) if made else []
        return [*(item for item in plan.items if item.key in wanted), *derived]

    def schedule_retries(self) -> None:
        """Let the retry policy speak about every failure that it has not judged yet."""
        from penstock.control.schedule import schedule
        from penstock.state.schedule import RetryStore

        due_at = due_times(self.settings, self.now())
        schedule(RetryStore(self.database), self.settings.assets, random.random, due_at)

    def new_backfill(
        self, selection: Selection, *, reprocess: bool, chunk_size: int, priority: int, max_chunks: int, actor: str
    ) -> Backfill:
        """A backfill of everything that the selection means, not recorded yet."""
        from penstock.control.ranges import count_partitions, without_frozen
        from penstock.state.backfills import Backfill

        ranges = by_kind(without_frozen(self.ranges(selection))).fetched
        if selection.names_derived:
            raise UsageError("models are not backfilled: `penstock run` makes what is due, `--reprocess` all again")
        for key in selection.keys:
            self._refuse_what_is_not_due(key)
        # Days that come later are fresh work, not part of this backfill.
        until = max((span.last for span in ranges), default=None)
        selection = selection if selection.keys else replace(selection, until=until)
        total = count_partitions(ranges)
        return Backfill(
            new_ulid(),
            "active",
            selection.as_dict(),
            reprocess,
            chunk_size,
            priority,
            max_chunks,
            total,
            None,
            self.now(),
            actor,
        )

    def of_version(self, selection: Selection) -> int:
        """How many trusted runs are of the schema version that a selection names, and can be fetched again. Refuses a
        version that none is of, and the one that is fetched anyway."""
        from penstock.control.ranges import without_frozen

        ranges = by_kind(without_frozen(self.ranges(selection))).fetched
        versions = self.reader.versions(ranges)
        wanted = selection.schema_version
        if wanted not in versions:
            known = ", ".join(f"{name} ({count:,})" for name, count in sorted(versions.items())) or "none"
            raise UsageError(f"no trusted run here is of schema version {wanted} (there are: {known})")
        queries = {span.query_name for span in ranges}
        if all(self.contracts[name].schema_version == wanted for name in queries):
            raise UsageError(f"{wanted} is the schema version that is fetched today: change it in the workspace file")
        return versions[wanted]

    def backfill_failures(self, backfill_id: str, *, without_raw: bool, listed: int = 100) -> RetryPreview:
        """How many partitions `retry_backfill` would retry, how many it refuses and why, and the first of each.
        `retry_candidates` applies the same rule."""
        from penstock.control.requeue import RetryPreview

        found = RetryPreview(listed, self.now())
        for page in self._failure_pages(backfill_id, without_raw):
            found.add(page)
        return found

    def _failure_pages(self, backfill_id: str, without_raw: bool) -> Iterator[RetryPage]:
        """The partitions that failed in a backfill and that nobody attempted since, in key order, sorted out page by
        page. Partitions that left the configuration are not among them."""
        from penstock.control.ranges import clip_to_keys
        from penstock.control.requeue import MOVED, classify_failed
        from penstock.state.records import FailedPartition

        self.backfills.get(backfill_id)  # refuses an unknown one
        due = {(span.source, span.customer_id, span.query_name): span for span in self.ranges(Selection())}
        after: PartitionKey | None = None
        while keys := self.backfills.failed(backfill_id, after=after, limit=MOVED):
            after = keys[-1]
            spans = {key: due[key[:3]] for key in keys if key[:3] in due}
            failed = [key for key, span in spans.items() if span.first <= key.logical_date <= span.last]
            known = {found.key: found for found in self.reader.failed(clip_to_keys(due.values(), failed))}
            # The failed re-fetch of a success partition is none of these, and nothing refuses its retry.
            found = [known.get(key, FailedPartition(key, marked=False, left_nothing=False)) for key in failed]
            frozen = {key for key in failed if spans[key].is_frozen(key.logical_date)}
            yield classify_failed(found, frozen, without_raw=without_raw)

    def _failed(self, page: RetryPage) -> list[PartitionKey]:
        """Those that a retry of the page would move."""
        from penstock.control.ranges import clip_to_keys

        wanted = set(page.wanted)
        found = self.reader.failed(clip_to_keys(self.ranges(Selection()), page.wanted)) if wanted else []
        return [one.key for one in found if one.key in wanted]

    def retry_backfill(
        self,
        old: Backfill,
        actor: str,
        *,
        without_raw: bool,
        total: int,
        flags: Mapping[str, Any] | None = None,
        report: Callable[[float], None] = lambda share: None,
    ) -> str:
        """Requeue what `backfill_failures` counted as `total`, and create a backfill that attempts it, with the chunk
        size and the priority of the old one. While such a backfill is active or paused, that one is returned.

        A crash between the two loses nothing: the partitions are pending then, and a repeated call creates the
        backfill for them."""
        started = next(
            (b for b in self.backfills.all("active", "paused") if b.selector.get("retry_of") == old.backfill_id), None
        )
        now = self.now()
        entry = AuditEntry(actor, AuditedAct.BACKFILL_RETRY_FAILED, {"backfill_id": old.backfill_id}, flags or {})
        if started is not None:
            # It attempts these, too, unless they are failed: an earlier call refused them then.
            refused = [key for page in self._failure_pages(old.backfill_id, without_raw) for key in self._failed(page)]
            if refused:
                self._requeue(iter(refused), len(refused), entry, report)
            return started.backfill_id
        keys = (key for page in self._failure_pages(old.backfill_id, without_raw) for key in page.wanted)
        self._requeue(keys, total, entry, report)
        new = replace(
            old,
            backfill_id=new_ulid(),
            status="active",
            selector={"retry_of": old.backfill_id},
            total=self.backfills.failed_count(old.backfill_id, before=now),
            cursor=None,
            created_at=now,
            created_by=actor,
            finished_at=None,
        )
        self.backfills.create(new, entry)
        return new.backfill_id

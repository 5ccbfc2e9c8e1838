"""The composition root: settings in, wired application out. Also the Python API."""

from __future__ import annotations

import getpass
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date as Day
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock, last_day_over, utc_now
from penstock.control.select import Selection, derived, due_range, expected
from penstock.errors import ActRefused, ConfigError, PenstockError, UsageError, WarehouseError
from penstock.expected import ExpectedRange
from penstock.failpoint import reach
from penstock.lifecycle import Outcome, PartitionStatus
from penstock.partition import MODELS, AttemptKey, PartitionKey, RunId, day, new_run_id, new_ulid
from penstock.settings import Model, Settings, find_workspace, load_settings
from penstock.state.breakers import BreakerStore
from penstock.state.control import AuditEntry, ControlStore
from penstock.state.reader import StateReader
from penstock.state.records import Attempt, PartitionView
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from penstock.warehouse.pointers import PointerReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.contract.contract import Contract
    from penstock.control.customers import CustomerPlan
    from penstock.control.models import ModelPlan, ModelPlanner
    from penstock.control.plan import Plan
    from penstock.control.why import Why
    from penstock.db.engine import Database
    from penstock.derived import Derived
    from penstock.flow.recheck import Rechecked
    from penstock.flow.runner import Runner
    from penstock.flow.summary import RunSummary, Watcher
    from penstock.lake import Lake
    from penstock.ledger.read import LedgerReader
    from penstock.pipeline.references import Referenced
    from penstock.pipeline.verify import Verification
    from penstock.pipeline.work import Report
    from penstock.projections.board import Board
    from penstock.projections.current import Current
    from penstock.projections.projector import Projector
    from penstock.projections.run_page import RunPage
    from penstock.projections.staleness import Policy
    from penstock.raw.reader import RawRun
    from penstock.state.backfills import Backfill, BackfillStore
    from penstock.state.marks import MarkStore
    from penstock.state.records import Planned
    from penstock.warehouse.compare import Difference
    from penstock.warehouse.publish import Compaction, Publication, Publisher
    from penstock.warehouse.reader import Head, Vouched
    from penstock.warehouse.readiness import Coverage
    from penstock.warehouse.snapshots import Snapshot, SnapshotStore
    from penstock.warehouse.sql import Relation

log = logging.getLogger(__name__)


def open_workspace(path: str | Path = ".", clock: Clock = utc_now) -> Workspace:
    """The workspace in (or above) `path`; refuses one whose database is missing or of another version."""
    workspace = load_workspace(path, clock)
    workspace.require_schema()
    return workspace


def load_workspace(path: str | Path = ".", clock: Clock = utc_now) -> Workspace:
    """The workspace without a look at its database, for commands that create or mend it."""
    return Workspace(load_settings(find_workspace(Path(path)), os.environ), clock)


class Workspace:
    """One workspace: its settings, its state database, its lake, and what can be done with them."""

    def __init__(self, settings: Settings, clock: Clock = utc_now) -> None:
        self.settings = settings
        self._clock = clock

    def now(self) -> datetime:
        return self._clock()

    @cached_property
    def database(self) -> Database:
        from penstock.db.engine import Database

        return Database(self.settings.state.url, self.settings.state.schema_name)

    @cached_property
    def lake(self) -> Lake:
        from penstock.lake import open_lake

        return open_lake(self.settings.lake)

    @cached_property
    def reader(self) -> StateReader:
        return StateReader(self.database)

    @cached_property
    def breakers(self) -> BreakerStore:
        return BreakerStore(self.database, self._clock)

    @cached_property
    def pointers(self) -> PointerReader:
        return PointerReader(self.database)

    @cached_property
    def contracts(self) -> dict[str, Contract]:
        """The contracts of today's configuration, by query and model. The fields of a model that was never made as it
        is defined today are not known before Spark has looked at it."""
        from penstock.contract.contract import Contract

        found = {name: Contract.of(query) for name, query in self.settings.queries.items()}
        if self.settings.models:
            from penstock.flow.model_contracts import known

            found |= known(self.settings.models, self.settings.root, self.reader.contracts())
        return found

    def require_schema(self) -> None:
        from penstock.db.migrate import ensure_current

        ensure_current(self.database, self.settings.tenant, self.settings.workspace)

    def migrate(self) -> tuple[str | None, str]:
        from penstock.db.migrate import migrate

        return migrate(self.database, self.settings.tenant, self.settings.workspace)

    def ranges(self, selection: Selection) -> list[ExpectedRange]:
        return expected(self.settings, selection, self.now())

    def derived(self) -> Derived:
        """What is expected of models now, and what goes into them."""
        return derived(self.settings, self.now())

    # --- what should happen -------------------------------------------------------------------------------------

    def plan(self, selection: Selection, *, reprocess: bool = False, limit: int | None = None) -> Plan:
        """What `run` would attempt now; with `limit` all of it is counted, and only so much listed."""
        from penstock.control.plan import ASKED_FOR, preview
        from penstock.control.restate import schedules

        ranges = self.ranges(selection)
        self._refuse_what_cannot_run(ranges)
        for key in selection.keys:
            self._refuse_what_is_not_due(key)
        models = [span for span in ranges if span.source == MODELS]
        reasons = (*ASKED_FOR, "success") if reprocess else ASKED_FOR
        plan = preview(
            self.reader,
            [span for span in ranges if span.source != MODELS],
            self.contracts,
            self.now(),
            restated=schedules(self.settings.queries),
            reasons=reasons,
            status=selection.status,
            limit=None if models else limit,  # what a model waits for must be known one by one
        )
        if not models:
            return plan
        inside = [item.key for item in plan.items]
        made = self._model_planner().plan(models, inside, self.now(), reasons, selection.status)
        return plan.and_models(made.items, made.fan_ins, made.waiting, limit)

    def _model_planner(self) -> ModelPlanner:
        from penstock.control.models import ModelPlanner
        from penstock.warehouse.readiness import available

        return ModelPlanner(
            self.reader,
            self.derived(),
            self.contracts,
            lambda ranges: available(self.database, ranges),
            self._overtaken_models,
        )

    def _overtaken_models(self) -> list[PartitionKey]:
        """Slices of models whose inputs or code are not those that they were made from."""
        board = self.board(Selection(source=MODELS))
        return [found.key for found in board.page("(overtaken OR outdated) AND available", after=None, limit=None)]

    def _refuse_what_is_not_due(self, key: PartitionKey) -> None:
        due = due_range(self.settings, key, self.now())
        if not due.first <= key.logical_date <= due.last:
            raise UsageError(f"{key} is not due: for this customer and query {due.first} to {due.last} are")
        if due.is_frozen(key.logical_date):
            raise UsageError(
                f"{key} is frozen: {key.source} can only be asked for {due.frozen_before} and later, so nothing may"
                f" replace what is known of that day (sources.{key.source}.keeps says for how long it keeps days)"
            )

    def frozen(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Those of these partitions that their sources cannot be asked for any more."""
        now = self.now()
        return {key for key in keys if due_range(self.settings, key, now).is_frozen(key.logical_date)}

    def frozen_in(self, selection: Selection) -> int:
        """How many expected partitions of a selection are frozen."""
        from penstock.control import spans

        ranges = self.ranges(selection)
        return spans.count(ranges) - spans.count(spans.thawed(ranges))

    def _refuse_what_cannot_run(self, ranges: Sequence[ExpectedRange]) -> None:
        """Before anything is issued: fields that changed without a new version, bad options of sources and queries."""
        from penstock.control.plan import refuse_changed_fields
        from penstock.source.protocol import RunContext
        from penstock.source.registry import make_source, refuse_queries

        refuse_changed_fields(self.reader, self.contracts)
        for name in sorted({found.source for found in ranges} - {MODELS}):
            source = make_source(self.settings.sources[name], RunContext(new_run_id()))
            refuse_queries(source, self.settings.queries_of(name))

    def customer_changes(self, source: str | None, levels: int, statuses: Sequence[str]) -> tuple[str, CustomerPlan]:
        """The source that was asked (the only one that lists accounts, if none is named), and what a sync would
        write."""
        from penstock.control.customers import plan_customers
        from penstock.source.protocol import Lister, RunContext
        from penstock.source.registry import lists_accounts, make_source

        able = [name for name, found in self.settings.sources.items() if lists_accounts(found)]
        if source is None and len(able) != 1:
            raise UsageError(f"name the --source whose accounts are meant (sources that list them: {_listed(able)})")
        name = source or able[0]
        if name not in able:
            raise UsageError(f"{name!r} does not list accounts (sources that do: {_listed(able)})")
        lister = make_source(self.settings.sources[name], RunContext(new_run_id()))
        assert isinstance(lister, Lister)
        found = lister.accounts(levels, statuses)
        return name, plan_customers(self.settings, name, found, self.now())

    def sync_customers(self, plan: CustomerPlan, entry: AuditEntry) -> None:
        """Write the list of customers anew, with a line in the audit log."""
        from penstock.control.customers import write_customers

        write_customers(plan)
        self.note(entry, len(plan.changes), "done")

    def schedule_retries(self) -> None:
        """Let the retry policy speak about every failure that it has not judged yet."""
        from penstock.control.schedule import schedule
        from penstock.state.schedule import RetryStore

        schedule(RetryStore(self.database), self.settings.assets, random.random)

    def run(
        self,
        selection: Selection,
        *,
        watcher: Watcher,
        reprocess: bool = False,
        actor: str | None = None,
        spark: SparkSession | None = None,
    ) -> RunSummary:
        """Rescue what the dead left, plan, and carry the plan through extract, validate and load."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.summary import RunSummary
        from penstock.pipeline.session import start_session

        run_id = new_run_id()
        workers = self._rescue()
        plan = self.plan(selection, reprocess=reprocess)
        if not plan.items and not self.pointers.waiting():
            return RunSummary(run_id, skipped=plan.held)
        session = spark or start_session(self.settings.spark)
        items = self._under_todays_models(session, plan.items)
        with Heartbeat(workers) as heart:
            runner = self._runner(session, heart.token, watcher, by_hand=True)
            filters = {**selection.as_dict(), **({"reprocess": True} if reprocess else {})}
            summary = runner.run(run_id, items, actor=actor or os_user(), filters=filters, fan_ins=plan.fan_ins)
        self.schedule_retries()
        self._tell_lineage(run_id)
        summary.skipped += plan.held
        return summary

    def tick(
        self,
        session: Callable[[], SparkSession],
        worker_token: str,
        watcher: Watcher,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, Any]:
        """One round of the control loop: rescue, decide about retries, plan within the shares, run, publish."""
        from penstock.control.breaker import BreakerGuard
        from penstock.control.models import ModelPlan
        from penstock.control.rescue import tidy_own
        from penstock.control.round import Planner

        workers = self._rescue()
        tidy_own(workers, ControlStore(self.database, self._clock), worker_token)
        self._refuse_what_cannot_run(self.ranges(Selection()))
        run_id = new_run_id()
        guard = BreakerGuard(self.breakers, self._clock, by_hand=False)
        planner = Planner(self.reader, self.backfills, self.settings, self.contracts, worker_token, guard.gate)
        planned = planner.plan(run_id, self.now())
        facts: dict[str, Any] = {"run_id": run_id, "planned": len(planned.items), "waiting": planned.waiting}
        models = self._models_of_round(planned.items)
        if planned.items or models.items or self.pointers.waiting():
            spark = session()
            try:
                made = self._under_todays_models(spark, models.items)
            except (ConfigError, WarehouseError) as error:  # a model that cannot be made holds up no source
                log.error("models.refused", extra={"error": str(error)})
                made, models = (), ModelPlan()
            items = [*planned.items, *made]
            facts["planned"] = len(items)
            runner = self._runner(spark, worker_token, watcher, by_hand=False, stopping=stopping)
            filters = {"round": True}
            summary = runner.run(run_id, items, actor="control", filters=filters, fan_ins=models.fan_ins)
            facts |= {**summary.counts(), "blocked": summary.blocked, "seconds": summary.seconds}
            facts["troubles"] = summary.troubles
            if summary.blocked:  # the next round will not get further: no hurry
                facts["waiting"] = 0
            self.schedule_retries()
            self._tell_lineage(run_id)
        planner.conclude(planned.stretches, self.now())
        return facts

    def _models_of_round(self, items: Sequence[Planned]) -> ModelPlan:
        """What of the models can be made with what this round brings, or is due anyway."""
        from penstock.control.models import ModelPlan
        from penstock.control.plan import DUE

        models = self.ranges(Selection(source=MODELS)) if self.settings.models else []
        if not models:
            return ModelPlan()
        return self._model_planner().plan(models, [item.key for item in items], self.now(), DUE)

    def _under_todays_models(self, spark: SparkSession, items: Sequence[Planned]) -> Sequence[Planned]:
        """The plan, with the contracts of models as Spark understands their definitions now."""
        if not any(item.key.source == MODELS for item in items):
            return items
        self._learn_models(spark)
        prints = {name: contract.fingerprint for name, contract in self.contracts.items()}
        return [replace(item, contract_fingerprint=prints[item.key.query_name]) for item in items]

    def _learn_models(self, spark: SparkSession) -> None:
        """Ask Spark for the columns that models make by their definitions of today, and refuse what cannot be made."""
        from penstock.control.plan import refuse_changed_fields
        from penstock.flow.model_contracts import with_fields
        from penstock.pipeline.validate import check_expressions
        from penstock.warehouse.reader import table_schemas

        tables = table_schemas(self.lake, self.database, [(c.source, c.query_name) for c in self.contracts.values()])
        self.contracts = with_fields(spark, self.settings.models, self.contracts, tables)
        refuse_changed_fields(self.reader, self.contracts)
        for name in self.settings.models:
            check_expressions(spark, self.contracts[name])

    # --- runs -----------------------------------------------------------------------------------------------------

    def resume(self, run_id: RunId, *, watcher: Watcher, spark: SparkSession | None = None) -> RunSummary:
        """Go on with a run whose worker died, without repeating what it finished."""
        from penstock.control.resume import left_over, outdated_closings, reasons_of, still_current
        from penstock.flow.desk import Desk
        from penstock.flow.heartbeat import Heartbeat
        from penstock.pipeline.session import start_session
        from penstock.raw.reader import RawReader

        workers = WorkerStore(self.database, self._clock)
        control = ControlStore(self.database, self._clock)
        workers.bury()
        with Heartbeat(workers) as heart:
            reasons = reasons_of(self.run_filters(run_id))
            adopted, outdated = still_current(control.adopt(run_id, heart.token), self.settings, self.contracts)
            control.cancel(outdated_closings(outdated, heart.token))
            desk = Desk(run_id, self.ledger.news_of_run)
            desk.look()
            waiting = left_over(desk, adopted)
            plan = self._replan(waiting.unissued, reasons)
            sizes = RawReader(self.lake).sizes([item.attempt for item in waiting.fetched])
            session = spark or start_session(self.settings.spark)
            if any(item.attempt.partition.source == MODELS for item in adopted):
                self._learn_models(session)
            plan = self._under_todays_models(session, plan)
            runner = self._runner(session, heart.token, watcher, by_hand=True)
            summary = runner.resume(run_id, plan, adopted, sizes)
        self.schedule_retries()
        self._tell_lineage(run_id)
        return summary

    def _replan(self, keys: Sequence[PartitionKey], reasons: Sequence[str]) -> Sequence[Planned]:
        """What of these is still due; the rest was done by somebody else meanwhile."""
        from penstock.control.plan import preview
        from penstock.control.restate import schedules
        from penstock.control.spans import within

        wanted = set(keys)
        ranges = within(self.ranges(Selection()), keys)
        if not ranges:
            return []
        self._refuse_what_cannot_run(ranges)
        restated = schedules(self.settings.queries)
        fetched = [span for span in ranges if span.source != MODELS]
        made = [span for span in ranges if span.source == MODELS]
        plan = preview(self.reader, fetched, self.contracts, self.now(), restated=restated, reasons=reasons)
        derived = self._model_planner().still_due(made, wanted, self.now(), reasons) if made else []
        return [*(item for item in plan.items if item.key in wanted), *derived]

    def run_filters(self, run_id: RunId) -> Mapping[str, Any]:
        """What a run was asked to do."""
        found = self.reader.run(run_id)
        if found is None:
            raise UsageError(f"there is no run {run_id}: `penstock runs list` shows them")
        filters: Mapping[str, Any] = found.filters
        return filters

    def cancel_run(self, run_id: RunId, entry: AuditEntry) -> bool:
        """Ask for a run to stop. If nobody works on it any more, it is closed at once. False if it is over."""
        found = self.reader.run(run_id)
        if found is None:
            raise UsageError(f"there is no run {run_id}: `penstock runs list` shows them")
        if found.finished_at is not None:
            return False
        from penstock.control.rescue import end_cancelled

        control = ControlStore(self.database, self._clock)
        control.request_cancel(run_id, entry)
        end_cancelled(WorkerStore(self.database, self._clock), control, run_id)
        return True

    def tell_lineage(self, run_id: RunId) -> int:
        """Tell what a run read and wrote, as OpenLineage events; says how many. Telling it again changes nothing."""
        from penstock.contract.contract import Contract
        from penstock.control.lineage import require_openlineage, run_events, tell
        from penstock.state.assets import assets_of_run
        from penstock.warehouse.reader import heads_of_all

        if self.settings.lineage is None:
            raise UsageError("the workspace file has no `lineage:`: write lineage: {file: lineage.jsonl}")
        self.run_filters(run_id)  # refuses a run that does not exist
        require_openlineage()
        assets = assets_of_run(self.database, run_id)
        kept = {row.fingerprint: Contract.from_body(row.body) for row in self.reader.contracts()}
        names = sorted({(asset.source, asset.query_name) for asset in assets})
        heads = {head.name: head for _, head in heads_of_all(self.database, names)}
        tell(
            self.settings.lineage,
            run_events(self.settings, run_id, assets, kept, heads, self.lake.url),
        )
        return len(assets)

    def _tell_lineage(self, run_id: RunId) -> None:
        """The same at the end of a run. Trouble with it fails no run: `penstock lineage emit` can be called later."""
        if self.settings.lineage is None:
            return
        try:
            self.tell_lineage(run_id)
        except PenstockError as error:
            log.warning("lineage.behind", extra={"run_id": run_id, "error": str(error)})

    def _rescue(self) -> WorkerStore:
        """Close what dead workers left, and let the retry policy speak about what failed."""
        from penstock.control.rescue import rescue

        workers = WorkerStore(self.database, self._clock)
        rescue(workers, ControlStore(self.database, self._clock), ValidatorStore(self.database, self._clock))
        self.schedule_retries()
        return workers

    def _runner(
        self,
        session: SparkSession,
        worker_token: str,
        watcher: Watcher,
        *,
        by_hand: bool,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Runner:
        from penstock.control.breaker import BreakerGuard
        from penstock.flow.derive import Deriver
        from penstock.flow.runner import Runner
        from penstock.flow.stages import Bench

        def publish(run: RunId, report: Report | None) -> Publication:
            return self._publish(session, worker_token, run, report)

        bench = Bench(
            session,
            self.settings,
            self.contracts,
            ControlStore(self.database, self._clock),
            ValidatorStore(self.database, self._clock),
            publish,
            Deriver(self.database, self.lake, self.contracts, self.derived),
            self.project,
            watcher,
            worker_token,
            BreakerGuard(self.breakers, self._clock, by_hand),
            self._clock,
            self._referenced,
        )
        return Runner(bench, self.ledger.news_of_run, stopping)

    @cached_property
    def ledger(self) -> LedgerReader:
        from penstock.ledger.read import LedgerReader
        from penstock.ledger.segments import SegmentReader

        return LedgerReader(self.database, SegmentReader(self.lake))

    @cached_property
    def projector(self) -> Projector:
        from penstock.projections.manifest import Head
        from penstock.projections.projector import Projector
        from penstock.state.inputs import InputReader

        return Projector(
            Head(self.database, self.lake),
            self.lake,
            self.ledger,
            InputReader(self.database).of,
            (self.settings.tenant, self.settings.workspace),
            self._clock,
            self.settings.ledger.keep_runs,
        )

    def rebuild_projections(self, engine: str = "embedded", spark: SparkSession | None = None) -> int:
        """Make all projections anew from the ledger alone. Says how many events went in."""
        if engine == "embedded":
            return self.projector.rebuild()
        from penstock.pipeline.project import spark_maker
        from penstock.pipeline.session import start_session

        return self.projector.rebuild(spark_maker(spark or start_session(self.settings.spark), self.settings.lake))

    def export_ledger(self, older_than_days: int, entry: AuditEntry, *, rehearsal: bool = False) -> dict[str, Any]:
        """Move old events of runs that are over into the lake. Says how many, and where they are."""
        from penstock.control.export import export_before

        self.projector.advance()
        before = self.now() - timedelta(days=older_than_days)
        folded = self.projector.head.read()[1].cursor
        return export_before(
            self.database, self.lake, self.ledger, before, folded, entry, self.now(), rehearsal=rehearsal
        )

    def current(self) -> Current:
        """The projections at this moment: their files, and what the ledger has told since."""
        from penstock.projections.current import look
        from penstock.projections.manifest import Head
        from penstock.state.inputs import InputReader

        owner = (self.settings.tenant, self.settings.workspace)
        return look(Head(self.database, self.lake), self.lake, self.ledger, InputReader(self.database).of, owner)

    def board(self, selection: Selection, *, requeued: bool = True) -> Board:
        """How the expected partitions stand now; without `requeued`, those that wait to be tried again are left out."""
        from penstock.projections.board import Board

        ranges = self.ranges(selection)
        only = None if selection.status is None else self.reader.keys_in(ranges, selection.status)
        without = None if requeued else self.reader.requeued()
        return Board(self.current(), ranges, self.policies(), self.now(), only=only, without=without)

    def views(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionView]:
        """State, last attempt and control metadata of a few partitions."""
        if not keys:
            return {}
        return {view.key: view for view in self.reader.views(self.ranges(Selection(keys=tuple(keys))))}

    def sweep(self) -> int:
        """Write down what is stale now, in the table that other tools read. Says how many partitions are."""
        return self.projector.sweep(self.board(Selection()).swept())

    def run_page(self, run_id: RunId) -> RunPage:
        """One run, its tasks by stage and state, and what blocks those that do not go on."""
        from penstock.projections.run_page import run_page

        if self.reader.run(run_id) is None:
            raise UsageError(f"there is no run {run_id}: `penstock runs list` shows them")
        return run_page(self.current(), run_id)

    def policies(self) -> list[Policy]:
        """What staleness is measured by: today's contracts, and what the configuration allows."""
        from penstock.derived import reads_own
        from penstock.projections.staleness import Policy, Window

        def windows(model: Model) -> tuple[Window, ...]:
            tables = ((table, *table.split(".")) for table in model.depends_on)
            return tuple(
                Window(source, name, model.needs, reads_own(model, table, self.settings.models))
                for table, source, name in tables
            )

        used = {row.fingerprint: row.first_used_at for row in self.reader.contracts()}
        return [
            Policy(
                query.source,
                query.name,
                self.contracts[query.name].fingerprint,
                used.get(self.contracts[query.name].fingerprint),
                query.freshness.max_lag if query.freshness else None,
                query.restate.days if query.restate else 0,
                windows(query) if isinstance(query, Model) else (),
            )
            for query in self.settings.assets.values()
        ]

    def project(self) -> None:
        """Bring the projections forward. Trouble with that stops nobody: the next one catches up."""
        try:
            self.projector.advance()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run that was published must not end by it
            log.warning("projections.behind", extra={"error": str(error)})

    @cached_property
    def backfills(self) -> BackfillStore:
        from penstock.state.backfills import BackfillStore

        return BackfillStore(self.database, self._clock)

    def new_backfill(
        self, selection: Selection, *, reprocess: bool, chunk_size: int, priority: int, max_chunks: int, actor: str
    ) -> Backfill:
        """A backfill of everything that the selection means, not recorded yet."""
        from penstock.control import spans
        from penstock.state.backfills import Backfill

        ranges = [span for span in spans.thawed(self.ranges(selection)) if span.source != MODELS]
        if selection.source == MODELS or any(key.source == MODELS for key in selection.keys):
            raise UsageError("models are not backfilled: `penstock run` makes what is due, `--reprocess` all again")
        for key in selection.keys:
            self._refuse_what_is_not_due(key)
        # Days that come later are fresh work, not part of this backfill.
        until = max((span.last for span in ranges), default=None)
        selection = selection if selection.keys else replace(selection, until=until)
        total = spans.count(ranges)
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
        from penstock.control import spans

        ranges = [span for span in spans.thawed(self.ranges(selection)) if span.source != MODELS]
        versions = self.reader.versions(ranges)
        wanted = selection.schema_version
        if wanted not in versions:
            known = ", ".join(f"{name} ({count:,})" for name, count in sorted(versions.items())) or "none"
            raise UsageError(f"no trusted run here is of schema version {wanted} (there are: {known})")
        queries = {span.query_name for span in ranges}
        if all(self.contracts[name].schema_version == wanted for name in queries):
            raise UsageError(f"{wanted} is the schema version that is fetched today: change it in the workspace file")
        return versions[wanted]

    def retry_backfill(self, old: Backfill, failed: Sequence[PartitionKey], actor: str) -> str:
        """A new backfill of these partitions, with the manners of the old one; those that are failed become pending.
        While one is under way, that is the one."""
        started = next(
            (b for b in self.backfills.all("active", "paused") if b.selector.get("retry_of") == old.backfill_id), None
        )
        if started is not None:
            return started.backfill_id
        selection = Selection(keys=tuple(failed))
        new = self.new_backfill(
            selection,
            reprocess=old.reprocess,
            chunk_size=old.chunk_size,
            priority=old.priority,
            max_chunks=old.max_chunks,
            actor=actor,
        )
        entry = AuditEntry(actor, "backfill retry-failed", {"backfill_id": old.backfill_id}, {})
        # In this order a crash in between loses nothing: the new backfill takes what is pending whenever it becomes so.
        self.backfills.create(replace(new, selector={**new.selector, "retry_of": old.backfill_id}), entry)
        self.retry(failed, entry)
        return new.backfill_id

    def recheck(
        self, selection: Selection, *, watcher: Watcher, actor: str | None = None, spark: SparkSession | None = None
    ) -> Rechecked:
        """Examine the trusted runs of success partitions against today's contract; what fails is demoted."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.recheck import recheck
        from penstock.pipeline.session import start_session

        trusted = self.to_recheck(selection)
        session = spark or start_session(self.settings.spark)
        if any(attempt.partition.source == MODELS for attempt, _ in trusted):
            self._learn_models(session)
        validator = ValidatorStore(self.database, self._clock)
        found = recheck(session, self.settings.lake, self.contracts, trusted, validator, watcher, self._referenced)
        entry = AuditEntry(actor or os_user(), "validate", selection.as_dict(), {})
        ControlStore(self.database, self._clock).note(entry, len(found.demoted), "done")
        if found.demoted:
            with Heartbeat(WorkerStore(self.database, self._clock)) as heart:
                self._publish(session, heart.token, new_run_id(), None)
        return found

    def to_recheck(self, selection: Selection) -> list[tuple[AttemptKey, int]]:
        """The trusted runs that today's contract can judge: those of its schema version, with their sizes."""
        versions = {name: contract.schema_version for name, contract in self.contracts.items()}
        found = self.reader.trusted(self.ranges(selection))
        return [(a, size) for a, version, size in found if versions[a.partition.query_name] == version]

    def retry_candidates(
        self, selection: Selection, *, without_raw: bool
    ) -> tuple[list[PartitionKey], dict[str, list[PartitionKey]]]:
        """What `retry` would requeue, and what it refuses, by the reason."""
        ranges = self.ranges(selection)
        if selection.status not in (None, PartitionStatus.FAILED):
            return [], {}
        failed = self.reader.views(ranges, status=PartitionStatus.FAILED)
        nothing = set() if without_raw else self.reader.left_nothing(ranges)
        refused: dict[str, list[PartitionKey]] = {"no_raw": [], "terminal": [], "frozen": []}
        frozen = self.frozen(view.key for view in failed)
        wanted = []
        for view in failed:
            if view.key in frozen:
                refused["frozen"].append(view.key)
            elif view.control.terminal_at is not None:
                refused["terminal"].append(view.key)
            elif view.key in nothing:
                refused["no_raw"].append(view.key)
            else:
                wanted.append(view.key)
        return wanted, refused

    def retry(self, keys: Sequence[PartitionKey], entry: AuditEntry) -> int:
        """failed -> pending, in the audit log. Says how many moved."""
        return ControlStore(self.database, self._clock).requeue(keys, entry)

    @property
    def marks(self) -> MarkStore:
        """The operator's marks: given up for good, paused, and both taken back."""
        from penstock.state.marks import MarkStore

        return MarkStore(self.database, self._clock)

    def terminal(self, selection: Selection) -> list[tuple[PartitionView, str]]:
        """The failed partitions that nothing will try again, each with why."""
        from penstock.control.retry import terminal

        now = self.now()
        found = []
        for view in self.reader.views(self.ranges(selection), status=PartitionStatus.FAILED):
            why = terminal(self.settings.asset(view.key.query_name).retry, view.control, now)
            if why is not None:
                found.append((view, why))
        return found

    def is_terminal(self, view: PartitionView) -> str | None:
        """Why this partition is given up for good; None if it is not."""
        from penstock.control.retry import terminal

        if view.state.status is not PartitionStatus.FAILED:
            return None
        return terminal(self.settings.asset(view.key.query_name).retry, view.control, self.now())

    def maturity(self, view: PartitionView) -> str | None:
        """Whether the source may still change this day (provisional or settled); None while no run is trusted, and for
        models, which follow what they are made from."""
        from penstock.control.restate import maturity

        if view.state.status is not PartitionStatus.SUCCESS or view.key.source == MODELS:
            return None
        over = last_day_over(self.now(), self.settings.customer(view.key.customer_id).time_zone)
        return maturity(self.settings.query(view.key.query_name), view.key.logical_date, over)

    def demote(self, key: PartitionKey, reason: str, entry: AuditEntry, *, rehearsal: bool = False) -> bool:
        """Withdraw the trusted run of a partition; False if it was withdrawn before."""
        from penstock.state.authority import AuthorityStore

        self.ranges(Selection(keys=(key,)))
        with self._refusals_noted(entry, rehearsal):
            return AuthorityStore(self.database, self._clock, rehearsal).demote(key, reason, entry)

    def rollback(self, key: PartitionKey, to: RunId, entry: AuditEntry, *, rehearsal: bool = False) -> bool:
        """Trust an earlier accepted run again; False if it is the trusted one."""
        from penstock.control.approval import refuse_without_raw
        from penstock.raw.reader import RawReader
        from penstock.state.authority import AuthorityStore

        with self._refusals_noted(entry, rehearsal):
            attempt = self._attempt(key, to)
            if attempt.was_vouched_for:
                refuse_without_raw(attempt, RawReader(self.lake))
            return AuthorityStore(self.database, self._clock, rehearsal).rollback(key, to, entry)

    def approve(
        self, key: PartitionKey, run_id: RunId, reason: str, entry: AuditEntry, *, rehearsal: bool = False
    ) -> bool:
        """Trust a run that only guards (shrink, compare) held back; False if it is the trusted one."""
        from penstock.contract.contract import Contract
        from penstock.control.approval import refuse_other_complaints, refuse_without_raw
        from penstock.raw.reader import RawReader
        from penstock.state.authority import AuthorityStore

        with self._refusals_noted(entry, rehearsal):
            attempt = self._attempt(key, run_id)
            body = self.reader.contract(attempt.contract_fingerprint)
            if attempt.outcome is Outcome.FAILED and attempt.approved_at is None and body is not None:
                refuse_other_complaints(attempt, Contract.from_body(body))
                refuse_without_raw(attempt, RawReader(self.lake))
            return AuthorityStore(self.database, self._clock, rehearsal).approve(key, run_id, reason, entry)

    @contextmanager
    def _refusals_noted(self, entry: AuditEntry, rehearsal: bool) -> Iterator[None]:
        """What was asked for and refused is in the audit log, too."""
        try:
            yield
        except ActRefused as refusal:
            if not rehearsal:
                ControlStore(self.database, self._clock).note(entry, 0, f"refused: {refusal}")
            raise

    def _attempt(self, key: PartitionKey, run_id: RunId) -> Attempt:
        self.ranges(Selection(keys=(key,)))
        attempts = self.reader.attempts(key)
        for attempt in attempts:
            if attempt.run_id == run_id:
                return attempt
        known = ", ".join(attempt.run_id for attempt in attempts) or "none"
        raise ActRefused(f"{key} has no attempt in run {run_id} (runs: {known})")

    def why(self, key: PartitionKey) -> Why:
        from penstock.control.breaker import in_words
        from penstock.control.why import Circumstances, explain

        [view] = self.reader.views(self.ranges(Selection(keys=(key,))))
        around = Circumstances(
            due_range(self.settings, key, self.now()),
            self.pointers.is_due(key),
            self.is_terminal(view),
            in_words(self.breakers.get(key.source), self.now()),
            self.maturity(view),
            self.board(Selection(keys=(key,))).everything()[0],
            self._tasks_of(key, view.open_run_id) if view.open_run_id else (),
            self._lacking(key) if key.source == MODELS else (),
        )
        return explain(view, self.pointers.pointer(key), self.reader.attempts(key), around)

    def _lacking(self, key: PartitionKey) -> tuple[str, ...]:
        """What a slice of a model needs and cannot read, table by table."""
        from penstock.warehouse.readiness import Rule, available

        rule = Rule(self.settings.models[key.query_name].require)
        words = []
        for table, keys in self.derived().inputs(key).items():
            there = available(self.database, self.ranges(Selection(keys=tuple(keys)))) if keys else set()
            absent = [one for one in keys if one not in there]
            if len(keys) - len(absent) < rule.needed(len(keys)):
                few = ", ".join(map(str, absent[:3])) + (" ..." if len(absent) > 3 else "")
                words.append(f"{len(absent):,} of {len(keys):,} slices of {table} cannot be read: {few}")
        return tuple(words)

    def _tasks_of(self, key: PartitionKey, run_id: RunId) -> tuple[str, ...]:
        """What the run that works on a partition has done of it, task by task."""
        from penstock.flow.desk import Desk

        desk = Desk(run_id, self.ledger.news_of_run)
        desk.look()
        return tuple(f"{stage} {state}" for stage, state in desk.states(str(key)).items())

    def troubles(self) -> list[str]:
        """The sources for which not everything is issued, and why."""
        from penstock.control.breaker import in_words

        found = (in_words(breaker, self.now()) for breaker in self.breakers.all())
        return [words for words in found if words]

    def provisional(self, selection: Selection) -> int:
        """How many trusted partitions their sources may still change."""
        recent = []
        for span in self.ranges(selection):
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

    def partition(self, key: str) -> PartitionHandle:
        """One partition, to ask about it."""
        return PartitionHandle(self, PartitionKey.parse(key))

    # --- what was received --------------------------------------------------------------------------------------

    def raw_runs(self, key: PartitionKey) -> tuple[list[RawRun], RunId | None]:
        """Every run of a partition in the raw sink, and which of them consumers may read."""
        from penstock.raw.reader import RawReader

        self.ranges(Selection(keys=(key,)))  # refuses unknown names
        state = self.reader.state(key)
        trusted = state.current_run_id if state and state.status is PartitionStatus.SUCCESS else None
        return RawReader(self.lake).runs(key), trusted

    def raw_lines(self, key: PartitionKey, run_id: RunId | None = None) -> Iterator[bytes]:
        """The payload of the trusted run, or of a named one, line by line."""
        from penstock.pipeline.payloads import lines_of
        from penstock.raw.reader import RawReader

        found, trusted = self.raw_runs(key)
        wanted = run_id or trusted
        if wanted is None:
            raise ActRefused(f"no run of {key} is trusted now, so there is nothing to read; operators may name a --run")
        if wanted not in {run.attempt.run_id for run in found}:
            known = ", ".join(run.attempt.run_id for run in found) or "none"
            raise ActRefused(f"{key} has no run {wanted} in the raw sink (runs: {known})")
        raw = RawReader(self.lake)
        seal = raw.seal(AttemptKey(key, wanted))
        if seal is None:
            raise ActRefused(f"run {wanted} of {key} was never sealed: what lies there is not whole")
        return lines_of(raw, seal)

    def garbage(self, older_than: timedelta) -> list[AttemptKey]:
        """Raw runs that were closed longer ago and that nothing refers to: no authority, pointer or publication."""
        from penstock.state.garbage import GarbageStore

        return GarbageStore(self.database, self._clock).find(self.now() - older_than)

    def collect_garbage(self, found: Sequence[AttemptKey], older_than: timedelta, entry: AuditEntry) -> tuple[int, int]:
        """Mark these raw runs as deleted, then delete them, and what an earlier call marked and did not come to delete.
        Says how many runs and files."""
        from penstock.raw.reader import RawReader
        from penstock.state.garbage import GarbageStore

        store, now = GarbageStore(self.database, self._clock), self.now()
        marked = store.mark(list(found), now - older_than, entry)
        reach("garbage.marked")
        return marked, RawReader(self.lake).delete(store.marked_since(now - timedelta(days=7)))

    # --- what consumers read ------------------------------------------------------------------------------------

    def read(
        self,
        table: str,
        *,
        since: str | Day | None = None,
        until: str | Day | None = None,
        date: str | Day | None = None,
        customers: Sequence[str] = (),
        columns: Sequence[str] = (),
        as_of: str | None = None,
        spark: SparkSession | None = None,
    ) -> Vouched | DataFrame:
        """The vouched rows of `source.query_name`: with `spark` a DataFrame, else .arrow(), .batches(), .duckdb()."""
        vouched = self.vouched(
            table,
            since=_day(date or since),
            until=_day(date or until),
            customers=customers,
            columns=columns,
            as_of=as_of,
        )
        return vouched if spark is None else vouched.spark(spark)

    def vouched(
        self,
        table: str,
        *,
        since: Day | None = None,
        until: Day | None = None,
        customers: Sequence[str] = (),
        columns: Sequence[str] = (),
        as_of: str | None = None,
    ) -> Vouched:
        """The vouched rows of `source.query_name` at this moment: reading them twice gives the same rows. `as_of` names
        a snapshot: what was demoted since it was taken is left out."""
        from penstock.contract.schema import arrow_schema
        from penstock.warehouse.reader import Filter, Vouched, heads
        from penstock.warehouse.tables import file_schema

        contract = next((c for c in self.contracts.values() if c.asset == table), None)
        if contract is None:
            known = ", ".join(sorted(c.asset for c in self.contracts.values()))
            raise UsageError(f"unknown table {table} (tables: {known})")
        found = (
            heads(self.database, contract.source, contract.query_name)
            if as_of is None
            else self._heads_as_of(contract.source, contract.query_name, as_of)
        )
        wanted = Filter(since, until, tuple(customers), tuple(columns))
        return Vouched(self.lake, file_schema(arrow_schema(contract.columns)), found, wanted)

    def _referenced(self, table: str, first: Day, last: Day, customers: Sequence[str]) -> Referenced:
        """The vouched slices of these days, for contracts that refer to them."""
        from penstock.contract.schema import arrow_schema
        from penstock.pipeline.references import Referenced
        from penstock.warehouse.reader import Filter, Vouched, heads_and_slices
        from penstock.warehouse.tables import file_schema

        contract = next(c for c in self.contracts.values() if c.asset == table)
        found, slices = heads_and_slices(self.database, contract.source, contract.query_name, first, last)
        fields = file_schema(arrow_schema(contract.columns))
        return Referenced(slices, Vouched(self.lake, fields, found, Filter(first, last, tuple(customers))))

    @property
    def snapshots(self) -> SnapshotStore:
        from penstock.warehouse.snapshots import SnapshotStore

        return SnapshotStore(self.database, self.lake)

    def snapshot(self, name: str, keep: timedelta = timedelta(days=30)) -> Snapshot:
        """Name the present state of the whole warehouse, to read it `as_of` later."""
        assets = sorted({(c.source, c.query_name) for c in self.contracts.values()})
        return self.snapshots.take(name, assets, self.now(), keep)

    def _heads_as_of(self, source: str, query_name: str, name: str) -> list[Head]:
        from penstock.warehouse.snapshots import withdrawn_since

        snapshot = self.snapshots.get(name, self.now())
        withdrawn = withdrawn_since(self.database, source, query_name, snapshot.created_at)
        return [replace(head, withdrawn=withdrawn) for head in snapshot.of(f"{source}.{query_name}")]

    def withdrawn_since(self, name: str, tables: Sequence[str]) -> int:
        """How many partitions of these tables were demoted since a snapshot was taken."""
        from penstock.warehouse.snapshots import withdrawn_since

        snapshot = self.snapshots.get(name, self.now())
        assets = [c for c in self.contracts.values() if c.asset in tables]
        found = [withdrawn_since(self.database, c.source, c.query_name, snapshot.created_at) for c in assets]
        return sum(len({(day, customer) for day, customer, _ in runs}) for runs in found)

    def sql(self, statement: str, as_of: str | None = None) -> pa.RecordBatchReader:
        """One SELECT over vouched rows, on DuckDB; tables are named `source.query_name`."""
        from penstock.warehouse.sql import query

        def opener(name: str) -> Callable[[], Relation]:
            return lambda: self.vouched(name, as_of=as_of)

        tables: dict[str, Callable[[], Relation]] = {c.asset: opener(c.asset) for c in self.contracts.values()}
        return query(statement, tables | self._system_tables())

    def _system_tables(self) -> dict[str, Callable[[], Relation]]:
        """The projections by their names in SQL."""
        from penstock.projections.system import TABLES, system_table

        def opener(name: str) -> Callable[[], Relation]:
            return lambda: system_table(name, self.current())

        return {f"system.{name}": opener(name) for name in TABLES}

    def spark_sql(
        self, statement: str, spark: SparkSession | None = None, as_of: str | None = None
    ) -> pa.RecordBatchReader:
        """The same on Spark, for what is too large for one machine."""
        from pyspark.errors import PySparkException

        from penstock.pipeline.session import start_session
        from penstock.warehouse.sql import named_tables, with_names_in_spark

        session = spark or start_session(self.settings.spark)
        known = {c.asset for c in self.contracts.values()}
        views = {name: name.replace(".", "__") for name in named_tables(statement, known)}
        for name, view in views.items():
            self.vouched(name, as_of=as_of).spark(session).createOrReplaceTempView(view)
        try:
            return session.sql(with_names_in_spark(statement, views) if views else statement).toArrow().to_reader()
        except PySparkException as error:
            raise UsageError(f"the SQL failed: {str(error).partition(chr(10))[0]}") from error

    def coverage(
        self,
        table: str,
        *,
        since: str | Day | None = None,
        until: str | Day | None = None,
        date: str | Day | None = None,
        customers: Sequence[str] = (),
    ) -> list[Coverage]:
        """Day by day how much of what is expected can be read."""
        from penstock.warehouse.readiness import coverage

        query = next((q for q in self.settings.assets.values() if f"{q.source}.{q.name}" == table), None)
        if query is None:
            known = ", ".join(sorted(c.asset for c in self.contracts.values()))
            raise UsageError(f"unknown table {table} (tables: {known})")
        first, last = _day(date or since), _day(date or until)
        selection = Selection((), query.source, tuple(customers), (query.name,), first, last)
        found = coverage(self.database, self.ranges(selection))
        if date is not None and not found:
            raise UsageError(f"{table} expects nothing on {_day(date)}: the day is not over yet, or before its start")
        return found

    def ready(self, table: str, *, require: str = "all", **slice_of: Any) -> bool:
        """Whether every day of a slice can be read, by a rule: all, any, a number of partitions, or a share (95%)."""
        from penstock.warehouse.readiness import Rule

        rule = Rule(require)
        return all(rule.holds(day) for day in self.coverage(table, **slice_of))

    def wait_for(self, table: str, *, require: str = "all", patience: timedelta, **slice_of: Any) -> list[Coverage]:
        """Wait until a slice is ready, or patience ends. Says how it stands then."""
        from penstock.warehouse.readiness import Rule, wait_for

        return wait_for(lambda: self.coverage(table, **slice_of), Rule(require), patience)

    def differences(self, limit: int | None = None) -> tuple[list[Difference], dict[str, int]]:
        """Where the warehouse does not show what authority says."""
        from penstock.warehouse.compare import differences

        return differences(self.database, limit)

    def reconcile(self, report: Report | None = None, spark: SparkSession | None = None) -> Publication:
        """Compare all of authority with all pointers, and publish what differs; also finishes or forgets what somebody
        who died left half published."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.pipeline.session import start_session
        from penstock.warehouse.compare import queue_differences
        from penstock.warehouse.publish import Publication

        queue_differences(self.database, self.now())
        if not self.pointers.waiting() and not self.pointers.interrupted():
            return Publication()
        session = spark or start_session(self.settings.spark)
        with Heartbeat(WorkerStore(self.database, self._clock)) as heart:
            published = self._publish(session, heart.token, new_run_id(), report)
        self.project()
        return published

    def _publish(self, spark: SparkSession, worker_token: str, run_id: RunId, report: Report | None) -> Publication:
        return self._publisher(spark, worker_token, report).publish(run_id)

    def _publisher(self, spark: SparkSession, worker_token: str, report: Report | None) -> Publisher:
        from penstock.contract.contract import Contract
        from penstock.contract.schema import arrow_schema
        from penstock.pipeline.load import spark_stager
        from penstock.pipeline.work import parallelism
        from penstock.warehouse.publish import Publisher

        kept = {row.fingerprint: Contract.from_body(row.body) for row in self.reader.contracts()}
        fields = {contract.table: arrow_schema(contract.columns) for contract in kept.values()}
        return Publisher(
            self.database,
            self.lake,
            self._clock,
            worker_token,
            fields.__getitem__,
            spark_stager(spark, self.settings.lake, kept.__getitem__, report),
            parallelism(spark),
        )

    def verify(self, assets: Sequence[str], report: Report, *, raw: bool) -> Verification:
        """Count and hash everything that is served anew; with `raw`, also the payloads it was made from."""
        from penstock.contract.contract import Contract
        from penstock.pipeline.verify import Verification, verify_raw, verify_table

        kept = {c.table: c for c in (Contract.from_body(row.body) for row in self.reader.contracts())}
        heads = [head for _, head in self.warehouse_tables(assets)]
        done, steps = Verification(), len(heads) + raw
        for number, head in enumerate(heads):

            def share(part: float, before: int = number) -> None:
                report((before + part) / steps)

            verify_table(self.database, self.lake, head, kept[head.name], done, share)
        if raw:
            verify_raw(self.database, self.lake, heads, done, lambda part: report((len(heads) + part) / steps))
        return done

    def compact(
        self, tables: Sequence[str], report: Report | None, spark: SparkSession | None = None
    ) -> list[Compaction]:
        """Write small files of each month together; what readers see does not change."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.pipeline.session import start_session

        session = spark or start_session(self.settings.spark)
        with Heartbeat(WorkerStore(self.database, self._clock)) as heart:
            publisher = self._publisher(session, heart.token, report)
            return [publisher.compact(name) for name in tables]

    def note(self, entry: AuditEntry, affected: int, outcome: str) -> None:
        """A line in the audit log for an act that changed nothing in the state itself."""
        ControlStore(self.database, self._clock).note(entry, affected, outcome)

    def warehouse_tables(self, assets: Sequence[str] = ()) -> list[tuple[str, Head]]:
        """The tables that readers see, by asset."""
        from penstock.warehouse.reader import heads_of_all

        known = {c.asset: (c.source, c.query_name) for c in self.contracts.values()}
        if unknown := sorted(set(assets) - set(known)):
            raise UsageError(f"unknown table {', '.join(unknown)} (tables: {', '.join(sorted(known))})")
        return heads_of_all(self.database, [known[name] for name in sorted(assets or known)])

    def vacuum(self, assets: Sequence[str], retention: timedelta, *, dry_run: bool) -> dict[str, list[str]]:
        """Delete data files that no head, no snapshot, no prepared publication and no recent version needs."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.warehouse.vacuum import vacuum_table

        now = self.now()
        live = [s for s in self.snapshots.all() if s.expires_at > now]
        kept: dict[str, set[int]] = {}
        for snapshot in live:
            for _, head in snapshot.tables:
                kept.setdefault(head.name, set()).add(head.version)
        found = {}
        with Heartbeat(WorkerStore(self.database, self._clock)) as heart:
            for _, head in self.warehouse_tables(assets):
                keep = {head.version, *kept.get(head.name, ())}
                found[head.name] = vacuum_table(
                    self.database, self.lake, heart.token, head, keep, retention, dry_run=dry_run
                )
        if not dry_run:
            self.snapshots.forget_expired(now)
        return found


class PartitionHandle:
    """Questions about one partition."""

    def __init__(self, workspace: Workspace, key: PartitionKey) -> None:
        self._workspace = workspace
        self.key = key

    def why(self) -> Why:
        return self._workspace.why(self.key)


def os_user() -> str:
    """Who is acting, when nobody says otherwise."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _day(value: str | Day | None) -> Day | None:
    return day(value) if isinstance(value, str) else value

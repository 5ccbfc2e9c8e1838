"""Settings, clock, and lazily opened stores of one workspace; the audit of actions."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import interrupts
from penstock.clock import Clock, utc_now
from penstock.config.settings import Settings
from penstock.contract.contract import Contract
from penstock.control.local_days import days_by_zone
from penstock.control.select import Selection, derived, expected
from penstock.db.engine import Database
from penstock.db.migrate import ensure_current
from penstock.errors import ActRefused, PenstockError, UsageError
from penstock.expected import ExpectedRange
from penstock.lake import Lake, open_lake
from penstock.partition import RunId
from penstock.state.reader import StateReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.control.quota import SourceGuard
    from penstock.derived import Derived
    from penstock.ledger.read import LedgerReader
    from penstock.state.action_plans import ActionPlanStore
    from penstock.state.alert_deliveries import AlertDeliveryStore
    from penstock.state.alert_facts import AlertFacts
    from penstock.state.alerts import AlertStore
    from penstock.state.audited import AuditedAct
    from penstock.state.backfills import BackfillStore
    from penstock.state.breakers import BreakerStore
    from penstock.state.control import AuditEntry, ControlStore
    from penstock.state.idempotency import IdempotencyStore
    from penstock.state.logins import LoginStore
    from penstock.state.marks import MarkStore
    from penstock.state.orders import OrderStore
    from penstock.state.pauses import PauseStore
    from penstock.state.quota import QuotaStore
    from penstock.state.shares import ShareStore
    from penstock.state.tokens import TokenStore
    from penstock.state.validator import ValidatorStore
    from penstock.state.worker import WorkerStore
    from penstock.warehouse.mismatch import Mismatch
    from penstock.warehouse.pointers import PointerReader
    from penstock.warehouse.versions import Versions


_MOST_KNOWN = 200_000  # ranges of the last selections: pages of a server repeat a few; a range takes about 200 bytes


@dataclass
class AuditedAction:
    """The result of an action, for its closing line in the audit log."""

    affected: int = 0
    outcome: str = "done"


class _KnownRanges(NamedTuple):
    """The expected partitions of a selection, until the settings or a local day change."""

    settings: Settings
    days: object
    selection: Selection
    ranges: tuple[ExpectedRange, ...]


class Context:
    """Settings, clock, and lazily opened stores of one workspace, shared by its services.

    A service takes it as its first argument. Every store writes in compare-and-set transactions of its own, so several
    contexts of one workspace can be open at the same time, in one process or in many.
    """

    def __init__(self, settings: Settings, clock: Clock = utc_now) -> None:
        self.settings = settings
        self.clock = clock
        self._ranges: tuple[_KnownRanges, ...] = ()

    def now(self) -> datetime:
        return self.clock()

    @cached_property
    def database(self) -> Database:
        return Database(self.settings.state.url, self.settings.state.schema_name)

    @cached_property
    def lake(self) -> Lake:
        return open_lake(self.settings.lake)

    @cached_property
    def versions(self) -> Versions:
        from penstock.warehouse.versions import Versions

        return Versions(self.lake)

    @cached_property
    def state(self) -> StateReader:
        return StateReader(self.database, {name: asset.retry for name, asset in self.settings.assets.items()})

    @cached_property
    def breakers(self) -> BreakerStore:
        from penstock.state.breakers import BreakerStore

        return BreakerStore(self.database, self.clock)

    @cached_property
    def quotas(self) -> QuotaStore:
        """The store of counted request quotas."""
        from penstock.state.quota import QuotaStore

        return QuotaStore(self.database)

    @cached_property
    def shares(self) -> ShareStore:
        """The store of shares of request rates."""
        from penstock.state.shares import ShareStore

        return ShareStore(self.database)

    def guard(self, *, by_hand: bool) -> SourceGuard:
        """The breakers and quotas of all sources; `by_hand` for a run that a person starts."""
        from penstock.control.breaker import BreakerGuard
        from penstock.control.quota import SourceGuard

        breakers = BreakerGuard(self.breakers, self.clock, by_hand)
        return SourceGuard(breakers, self.quotas, self.settings, self.clock, by_hand)

    @cached_property
    def pointers(self) -> PointerReader:
        from penstock.warehouse.pointers import PointerReader

        return PointerReader(self.database)

    @cached_property
    def contracts(self) -> dict[str, Contract]:
        """The contracts of the current configuration, by the name of the query or model. The contract of a model whose
        current definition was never run has no fields until `ModelService.learn_contracts` derives them with Spark."""
        return {name: Contract.of(query) for name, query in self.settings.queries.items()} | self._known_models[0]

    @property
    def unreadable_models(self) -> dict[str, str]:
        """The models whose definition cannot be read: the reason by name."""
        return self._known_models[1]

    @cached_property
    def _known_models(self) -> tuple[dict[str, Contract], dict[str, str]]:
        if not self.settings.models:
            return {}, {}
        from penstock.flow.model_contracts import known

        return known(self.settings.models, self.settings.root, self.state.contracts())

    def stored_contracts(self) -> dict[str, Contract]:
        """Every contract that an attempt ever recorded, by fingerprint."""
        return {row.fingerprint: Contract.from_body(row.body) for row in self.state.contracts()}

    def contract_of(self, table: str) -> Contract:
        """The current contract of `source.query_name`. Raises UsageError for an unknown table."""
        self.require_tables([table])
        return next(contract for contract in self.contracts.values() if contract.asset == table)

    def require_tables(self, tables: Iterable[str]) -> list[str]:
        """The names of all tables, sorted. Raises UsageError if one of `tables` is not among them."""
        known = sorted(contract.asset for contract in self.contracts.values())
        if unknown := sorted(set(tables) - set(known)):
            raise UsageError(f"unknown table {', '.join(unknown)} (tables: {', '.join(known)})")
        return known

    def session(self, spark: SparkSession | None = None, *, writes: bool = True, fetches: bool = False) -> SparkSession:
        """The Spark session that the workspace file describes, or one on the cluster of `spark`. Raises ClusterUnfit if
        the executors of a cluster cannot do the work. Without `writes` they only need to read the lake; with `fetches`
        they need the packages and credentials of the sources."""
        from penstock.pipeline.executor_probe import Probe
        from penstock.pipeline.ready_session import ready_session

        return ready_session(self.settings, spark, Probe.of(self.settings, writes=writes, sources=fetches))

    def require_schema(self) -> None:
        """Raise ConfigError unless the state database has the schema of this version and belongs to this workspace."""
        ensure_current(self.database, self.settings.tenant, self.settings.workspace)

    def require_own_lake(self) -> None:
        """Raise LakeMismatch unless the lake and the state database belong together."""
        from penstock.warehouse.identity import require_own_lake

        require_own_lake(self.database, self.lake)

    def mismatches(self, *, everything: bool = False) -> list[Mismatch]:
        """The disagreements between the lake and the state database; with `everything` also tables in the lake that
        the database does not know."""
        from penstock.warehouse.consistency import mismatches

        return mismatches(self.database, self.lake, everything=everything)

    def ranges(self, selection: Selection) -> list[ExpectedRange]:
        """The expected partitions of a selection, as ranges of days. Raises UsageError for unknown names."""
        now = self.now()
        days = days_by_zone(self.settings, now)
        for known in self._ranges:  # a tuple that is replaced as a whole: threads need no lock
            if known.settings is self.settings and known.days == days and known.selection == selection:
                return list(known.ranges)
        found = _KnownRanges(self.settings, days, selection, tuple(expected(self.settings, selection, now)))
        sizes = accumulate(len(known.ranges) for known in (found, *self._ranges))
        kept = max(1, sum(size <= _MOST_KNOWN for size in sizes))
        self._ranges = (found, *self._ranges)[:kept]
        return list(found.ranges)

    def derived(self) -> Derived:
        """The expected partitions of models, and the partitions that they read."""
        return derived(self.settings, self.now())

    @cached_property
    def ledger(self) -> LedgerReader:
        from penstock.ledger.read import LedgerReader
        from penstock.ledger.segments import SegmentReader

        return LedgerReader(self.database, SegmentReader(self.lake))

    @cached_property
    def backfills(self) -> BackfillStore:
        from penstock.state.backfills import BackfillStore

        return BackfillStore(self.database, self.clock)

    @property
    def tokens(self) -> TokenStore:
        """The store of API tokens."""
        from penstock.state.tokens import TokenStore

        return TokenStore(self.database, self.clock)

    @property
    def logins(self) -> LoginStore:
        """The store of page sessions and failed logins."""
        from penstock.state.logins import LoginStore

        return LoginStore(self.database, self.clock)

    @property
    def action_plans(self) -> ActionPlanStore:
        """The store of previewed actions."""
        from penstock.state.action_plans import ActionPlanStore

        return ActionPlanStore(self.database, self.clock)

    @property
    def idempotency(self) -> IdempotencyStore:
        """The store of the keys of repeated requests."""
        from penstock.state.idempotency import IdempotencyStore

        return IdempotencyStore(self.database, self.clock)

    @property
    def orders(self) -> OrderStore:
        """The store of orders for the control loop."""
        from penstock.state.orders import OrderStore

        return OrderStore(self.database, self.clock)

    @property
    def alert_states(self) -> AlertStore:
        """The store of the states of alerts."""
        from penstock.state.alerts import AlertStore

        return AlertStore(self.database)

    @property
    def alert_deliveries(self) -> AlertDeliveryStore:
        """The queue of notifications."""
        from penstock.state.alert_deliveries import AlertDeliveryStore

        return AlertDeliveryStore(self.database)

    @property
    def alert_facts(self) -> AlertFacts:
        """The bulk queries behind the rules of alerts."""
        from penstock.state.alert_facts import AlertFacts

        return AlertFacts(self.database, self.state.limits)

    @property
    def marks(self) -> MarkStore:
        """Terminal marks and pauses of single partitions, set by operators."""
        from penstock.state.marks import MarkStore

        return MarkStore(self.database, self.clock)

    @property
    def pauses(self) -> PauseStore:
        """Pauses by selector, set by operators."""
        from penstock.state.pauses import PauseStore

        return PauseStore(self.database, self.clock)

    def note(self, entry: AuditEntry, affected: int, outcome: str) -> None:
        """Append a line to the audit log, in a transaction of its own."""
        self.control.note(entry, affected, outcome)

    @contextmanager
    def audited(self, entry: AuditEntry, affected: int = 0) -> Iterator[AuditedAction]:
        """Audit an action of more than one transaction: append `begun` before it and its outcome after it. A line
        `begun` without a later line belongs to an action that was killed."""
        interrupts.begin_work()
        self.note(entry, affected, "begun")
        act = AuditedAction()
        try:
            yield act
        except PenstockError as error:
            with suppress(PenstockError):  # the database may be what failed
                self.note(entry, act.affected, f"failed: {error}")
            raise
        self.note(entry, act.affected, act.outcome)

    def run_filters(self, run_id: RunId) -> Mapping[str, Any]:
        """The selection and the options that a run was started with. Raises UsageError for an unknown run."""
        found = self.state.run(run_id)
        if found is None:
            raise UsageError(f"there is no run {run_id}: `penstock runs list` shows them")
        filters: Mapping[str, Any] = found.filters
        return filters

    @contextmanager
    def refusals_audited(self, entry: AuditEntry, *, dry_run: bool = False) -> Iterator[None]:
        """Append a line to the audit log when the action inside is refused. A dry run leaves no line."""
        try:
            yield
        except ActRefused as refusal:
            if not dry_run:
                self.note(entry, 0, f"refused: {refusal}")
            raise

    @property
    def control(self) -> ControlStore:
        """The store of the control plane: issues attempts, requeues, records the audit log."""
        from penstock.state.control import ControlStore

        return ControlStore(self.database, self.clock)

    @property
    def workers(self) -> WorkerStore:
        """The store of workers: leases and heartbeats."""
        from penstock.state.worker import WorkerStore

        return WorkerStore(self.database, self.clock)

    @property
    def validators(self) -> ValidatorStore:
        """The store of the validator: verdicts."""
        from penstock.state.validator import ValidatorStore

        return ValidatorStore(self.database, self.clock)


def os_user() -> str:
    """The name of the operating-system user: the default actor of the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def audit_entry(
    actor: str | None,
    command: AuditedAct,
    filters: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """An entry of the audit log; without `actor`, the operating-system user acts."""
    from penstock.state.control import AuditEntry

    return AuditEntry(actor or os_user(), command, filters or {}, flags or {})

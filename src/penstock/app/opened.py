"""A workspace that is open: its settings, its stores, and what it expects."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock import interrupts
from penstock.clock import Clock, utc_now
from penstock.config.settings import Settings
from penstock.control.select import Selection, derived, expected
from penstock.errors import PenstockError, UsageError
from penstock.expected import ExpectedRange
from penstock.failpoint import reach
from penstock.partition import PartitionKey, RunId
from penstock.state.breakers import BreakerStore
from penstock.state.control import AuditEntry, ControlStore
from penstock.state.reader import StateReader
from penstock.state.records import PartitionView
from penstock.warehouse.pointers import PointerReader

if TYPE_CHECKING:
    from penstock.contract.contract import Contract
    from penstock.db.engine import Database
    from penstock.derived import Derived
    from penstock.lake import Lake
    from penstock.ledger.read import LedgerReader
    from penstock.state.backfills import BackfillStore
    from penstock.state.marks import MarkStore
    from penstock.state.pauses import PauseStore
    from penstock.warehouse.mismatch import Mismatch
    from penstock.warehouse.versions import Versions


@dataclass
class Audited:
    """What an act says about itself when it is over."""

    affected: int = 0
    outcome: str = "done"


class Opened:
    """Everything that the parts above reach for: one object each, made when it is first asked for."""

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
    def versions(self) -> Versions:
        from penstock.warehouse.versions import Versions

        return Versions(self.lake)

    @cached_property
    def reader(self) -> StateReader:
        return StateReader(self.database, {name: asset.retry for name, asset in self.settings.assets.items()})

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

        return {name: Contract.of(query) for name, query in self.settings.queries.items()} | self._known_models[0]

    @property
    def unreadable_models(self) -> dict[str, str]:
        """Why the definitions of some models cannot be read, by name."""
        return self._known_models[1]

    @cached_property
    def _known_models(self) -> tuple[dict[str, Contract], dict[str, str]]:
        if not self.settings.models:
            return {}, {}
        from penstock.flow.model_contracts import known

        return known(self.settings.models, self.settings.root, self.reader.contracts())

    def require_schema(self) -> None:
        from penstock.db.migrate import ensure_current

        ensure_current(self.database, self.settings.tenant, self.settings.workspace)

    def migrate(self) -> tuple[str | None, str]:
        """Create or update the schema, and mark the lake as this database's. Refuses a lake of another database."""
        from penstock.db.migrate import HEAD, migrate, version_of
        from penstock.warehouse.consistency import refuse_foreign_lake
        from penstock.warehouse.identity import claim_lake, lake_identity

        # A database from before identities that was restored beside a newer lake belongs to that lake. It is migrated
        # even if the lake has tables that it does not know: publishing to them is refused until a recovery.
        before = version_of(self.database)
        identity = lake_identity(self.lake) if before else None
        versions = migrate(
            self.database,
            self.settings.tenant,
            self.settings.workspace,
            lambda connection: refuse_foreign_lake(connection, self.lake, unknown_tables_too=before in (None, HEAD)),
            identity,
        )
        reach("migrate.committed")
        claim_lake(self.database, self.lake)
        return versions

    def require_own_lake(self) -> None:
        """Raise LakeMismatch unless the lake and the state database belong together."""
        from penstock.warehouse.identity import require_own_lake

        require_own_lake(self.database, self.lake)

    def mismatches(self, *, everything: bool = False) -> list[Mismatch]:
        """Where the lake and the state database disagree; with `everything` also tables that nobody knows."""
        from penstock.warehouse.consistency import mismatches

        return mismatches(self.database, self.lake, everything=everything)

    def lost_database(self) -> list[Mismatch]:
        """What the lake holds of a state database that is lost: the one of the workspace does not exist or has no
        schema. Nothing if it has one, or if the lake is new as well."""
        from penstock.db.migrate import version_of
        from penstock.warehouse.consistency import lake_without_database

        return [] if version_of(self.database) else lake_without_database(self.lake, str(self.database))

    def ranges(self, selection: Selection) -> list[ExpectedRange]:
        return expected(self.settings, selection, self.now())

    def derived(self) -> Derived:
        """What is expected of models now, and what goes into them."""
        return derived(self.settings, self.now())

    @cached_property
    def ledger(self) -> LedgerReader:
        from penstock.ledger.read import LedgerReader
        from penstock.ledger.segments import SegmentReader

        return LedgerReader(self.database, SegmentReader(self.lake))

    @cached_property
    def backfills(self) -> BackfillStore:
        from penstock.state.backfills import BackfillStore

        return BackfillStore(self.database, self._clock)

    @property
    def marks(self) -> MarkStore:
        """The operator's marks: given up for good, paused, and both taken back."""
        from penstock.state.marks import MarkStore

        return MarkStore(self.database, self._clock)

    @property
    def pauses(self) -> PauseStore:
        """The operator's pauses by selector."""
        from penstock.state.pauses import PauseStore

        return PauseStore(self.database, self._clock)

    def views(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionView]:
        """State, last attempt and control metadata of a few partitions."""
        if not keys:
            return {}
        return {view.key: view for view in self.reader.views(self.ranges(Selection(keys=tuple(keys))))}

    def note(self, entry: AuditEntry, affected: int, outcome: str) -> None:
        """A line in the audit log for an act that changed nothing in the state itself."""
        ControlStore(self.database, self._clock).note(entry, affected, outcome)

    @contextmanager
    def audited(self, entry: AuditEntry, affected: int = 0) -> Iterator[Audited]:
        """Wraps an act that is more than one transaction: `begun` is in the audit log before it, its outcome after it.
        A line `begun` without a later one belongs to an act that was killed."""
        interrupts.begin_work()
        self.note(entry, affected, "begun")
        act = Audited()
        try:
            yield act
        except PenstockError as error:
            with suppress(PenstockError):  # the database may be what failed
                self.note(entry, act.affected, f"failed: {error}")
            raise
        self.note(entry, act.affected, act.outcome)

    def run_filters(self, run_id: RunId) -> Mapping[str, Any]:
        """What a run was asked to do."""
        found = self.reader.run(run_id)
        if found is None:
            raise UsageError(f"there is no run {run_id}: `penstock runs list` shows them")
        filters: Mapping[str, Any] = found.filters
        return filters


def os_user() -> str:
    """Who is acting, when nobody says otherwise."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"

"""What the ledger says: projections, and the board over them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock import interrupts
from penstock.app.opened import Opened
from penstock.config.assets import Model
from penstock.control.select import Selection
from penstock.errors import UsageError
from penstock.partition import AssetKind, PartitionKey, RunId
from penstock.state.control import AuditEntry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.projections.current import Current
    from penstock.projections.page import PrefoldedRuns
    from penstock.projections.projector import Projector
    from penstock.projections.run_page import RunPage
    from penstock.projections.staleness import Policy
    from penstock.projections.status_board import Board, PartitionStanding


log = logging.getLogger(__name__)


class Chronicle(Opened):
    """Folds the ledger, and answers from what was folded."""

    @cached_property
    def projector(self) -> Projector:
        from penstock.projections.manifest import ManifestPointer
        from penstock.projections.projector import Projector
        from penstock.state.inputs import InputReader

        return Projector(
            ManifestPointer(self.database, self.lake),
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
            projector = self.projector
            interrupts.begin_work()
            return projector.rebuild()
        from penstock.pipeline.project import spark_maker
        from penstock.pipeline.session import start_session

        return self.projector.rebuild(spark_maker(spark or start_session(self.settings.spark), self.settings.lake))

    def export_ledger(self, older_than_days: int, entry: AuditEntry, *, rehearsal: bool = False) -> dict[str, Any]:
        """Move old events of runs that are over into the lake. Says how many, and where they are."""
        from penstock.control.export import export_before

        self.require_own_lake()
        projector = self.projector
        interrupts.begin_work()
        projector.advance()
        before = self.now() - timedelta(days=older_than_days)
        folded = self.projector.head.read()[1].cursor
        return export_before(
            self.database, self.lake, self.ledger, before, folded, entry, self.now(), rehearsal=rehearsal
        )

    def current(self) -> Current:
        """The projections at this moment: their files, and what the ledger has told since."""
        from penstock.projections.current import load_current
        from penstock.projections.manifest import ManifestPointer
        from penstock.state.inputs import InputReader

        owner = (self.settings.tenant, self.settings.workspace)
        return load_current(
            ManifestPointer(self.database, self.lake), self.lake, self.ledger, InputReader(self.database).of, owner
        )

    def board(self, selection: Selection, *, requeued: bool = True) -> Board:
        """How the expected partitions stand now; without `requeued`, those that wait to be tried again are left out."""
        from penstock.projections.status_board import Board

        ranges = self.ranges(selection)
        only = None if selection.status is None else self.reader.keys_in(ranges, selection.status)
        without = None if requeued else self.reader.requeued()
        withdrawn = self._withdrawn_inputs() if any(span.kind is AssetKind.DERIVED for span in ranges) else None
        return Board(
            self.current(), ranges, self.policies(), self.now(), only=only, without=without, withdrawn=withdrawn
        )

    def standings(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionStanding]:
        """How these expected partitions are displayed, by the rule of the board."""
        return {found.key: found for found in self.board(Selection(keys=tuple(keys))).everything()} if keys else {}

    def _withdrawn_inputs(self) -> pa.Table | None:
        """The derived partitions whose trusted run was made from a demoted one, as a table; None without any."""
        import pyarrow as pa

        from penstock.warehouse.withdrawn import trusted_inputs

        found = trusted_inputs(self.database)
        if not found:
            return None
        columns = list(zip(*((*one.key, one.first_demoted_at) for one in found), strict=True))
        kinds = {name: pa.string() for name in ("source", "customer_id", "query_name")}
        kinds |= {"logical_date": pa.date32(), "demoted_at": pa.timestamp("us", tz="UTC")}
        return pa.table({name: pa.array(c, kind) for (name, kind), c in zip(kinds.items(), columns, strict=True)})

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

        kept = self.reader.contracts()
        used = {row.fingerprint: row.first_used_at for row in kept}
        bodies = {row.fingerprint: row.body for row in kept}
        return [
            Policy(
                query.source,
                query.name,
                self.contracts[query.name].fingerprint,
                used.get(self.contracts[query.name].fingerprint),
                query.freshness.max_lag if query.freshness else None,
                query.restate.days if query.restate else 0,
                windows(query) if isinstance(query, Model) else (),
                tuple(self.contracts[query.name].same_as(bodies)),
            )
            for query in self.settings.assets.values()
        ]

    def project(self, prefolded: PrefoldedRuns | None = None) -> None:
        """Bring the projections forward. Trouble with that stops nobody: the next one catches up."""
        try:
            self.projector.advance(prefolded)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run that was published must not end by it
            log.warning("projections.behind: %s", error)

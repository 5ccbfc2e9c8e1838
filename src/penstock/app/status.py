"""Projections of the ledger, and the display status of partitions."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.config.assets import Model
from penstock.control.select import Selection
from penstock.derived import reads_own
from penstock.flow.trace import TRACEPARENT, trace_id_of
from penstock.partition import AssetKind, PartitionKey, RunId
from penstock.state.inputs import InputReader
from penstock.user_cache import UserCache
from penstock.warehouse.withdrawn import trusted_inputs

if TYPE_CHECKING:
    from penstock.projections.current import Current
    from penstock.projections.event_page import PrefoldedRuns
    from penstock.projections.projector import Projector
    from penstock.projections.run_page import RunPage
    from penstock.projections.staleness import Policy
    from penstock.projections.status_board import Board, KeyRows, PartitionStanding
    from penstock.projections.status_cache import StatusCounts

log = logging.getLogger(__name__)


class StatusService:
    """Folds the ledger into projections, and reads status, staleness and runs from them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @cached_property
    def projector(self) -> Projector:
        """Folds new events into the projections."""
        from penstock.projections.manifest import ManifestPointer
        from penstock.projections.projector import Projector

        return Projector(
            ManifestPointer(self._context.database, self._context.lake),
            self._context.lake,
            self._context.ledger,
            InputReader(self._context.database).of,
            (self._context.settings.tenant, self._context.settings.workspace),
            self._context.clock,
            self._context.settings.ledger.keep_runs,
        )

    def current(self) -> Current:
        """The projections at this moment: their files, plus the events since they were written.

        >>> ws.status.current()
        """
        from penstock.projections.current import load_current
        from penstock.projections.manifest import ManifestPointer

        owner = (self._context.settings.tenant, self._context.settings.workspace)
        return load_current(
            ManifestPointer(self._context.database, self._context.lake),
            self._context.lake,
            self._context.ledger,
            InputReader(self._context.database).of,
            owner,
        )

    def board(self, selection: Selection, *, requeued: bool = True) -> Board:
        """The display status of the expected partitions; without `requeued`, it leaves out partitions that wait for a
        retry.

        >>> ws.status.board(Selection(customers="1000000001")).counts(["query"])
        """
        from penstock.projections.status_board import Board

        ranges = self._context.ranges(selection)
        only = None if selection.status is None else self._context.state.keys_in(ranges, selection.status)
        without = None if requeued else self._context.state.requeued()
        withdrawn = self._withdrawn_inputs() if any(span.kind is AssetKind.DERIVED for span in ranges) else None
        return Board(
            self.current(),
            ranges,
            self.policies(),
            self._context.now(),
            only=only,
            without=without,
            withdrawn=withdrawn,
        )

    def counts(self, selection: Selection, groups: Sequence[str]) -> StatusCounts:
        """The number of expected partitions by group and display status, and by flag: those of `board`. Counts of all
        states are cached for the user until they can change.

        >>> ws.status.counts(Selection(customers="1000000001"), ["query"]).flags
        """
        from penstock.projections.status_cache import StatusCounts, status_counts

        if selection.status is not None:  # depends on the state database
            board = self.board(selection)
            return StatusCounts(board.counts(groups), board.flags())
        cache, ranges = UserCache.of(os.environ), self._context.ranges(selection)
        withdrawn = self._withdrawn_inputs() if any(span.kind is AssetKind.DERIVED for span in ranges) else None
        return status_counts(
            cache, self.current(), ranges, self.policies(), self._context.now(), groups, withdrawn=withdrawn
        )

    def standings(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionStanding]:
        """The display status of these expected partitions.

        >>> ws.status.standings([key])[key]
        """
        return {found.key: found for found in self.board(Selection(keys=tuple(keys))).everything()} if keys else {}

    def _withdrawn_inputs(self) -> KeyRows | None:
        """The model partitions whose trusted run read a demoted run, with the time of the demotion; None without
        any."""
        found = trusted_inputs(self._context.database)
        return [(*one.key, one.first_demoted_at) for one in found] or None

    def sweep(self) -> int:
        """Write the current staleness to the table that other tools read. Returns the number of stale partitions.

        >>> ws.status.sweep()
        """
        return self.projector.sweep(self.board(Selection()).swept())

    def run_page(self, run_id: RunId) -> RunPage:
        """One run: its tasks by stage and state, and what blocks unfinished tasks. Raises UsageError for an unknown
        run.

        >>> ws.status.run_page(ws.runs.start().run_id)
        """
        from penstock.projections.run_page import run_page

        filters = self._context.run_filters(run_id)  # refuses an unknown run
        return replace(run_page(self.current(), run_id), trace_id=trace_id_of(filters.get(TRACEPARENT)))

    def policies(self) -> list[Policy]:
        """The staleness policy of each asset: its current contract, freshness and inputs.

        >>> ws.status.policies()
        """
        from penstock.projections.staleness import Policy, Window

        def windows(model: Model) -> tuple[Window, ...]:
            tables = ((table, *table.split(".")) for table in model.depends_on)
            return tuple(
                Window(source, name, model.needs, reads_own(model, table, self._context.settings.models))
                for table, source, name in tables
            )

        kept = self._context.state.contracts()
        used = {row.fingerprint: row.first_used_at for row in kept}
        bodies = {row.fingerprint: row.body for row in kept}
        return [
            Policy(
                query.source,
                query.name,
                self._context.contracts[query.name].fingerprint,
                used.get(self._context.contracts[query.name].fingerprint),
                query.freshness.max_lag if query.freshness else None,
                query.restate.days if query.restate else 0,
                windows(query) if isinstance(query, Model) else (),
                tuple(self._context.contracts[query.name].same_as(bodies)),
            )
            for query in self._context.settings.assets.values()
        ]

    def advance(self, prefolded: PrefoldedRuns | None = None) -> None:
        """Fold new events into the projections. An error is logged and not raised: the next call catches up.

        >>> ws.status.advance()
        """
        try:
            self.projector.advance(prefolded)
        except Exception as error:  # noqa: BLE001 - a run that is published must not fail here
            log.warning("projections.behind", extra={"facts": {"error": str(error)}})

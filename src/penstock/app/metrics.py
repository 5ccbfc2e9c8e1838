"""Metrics of the workspace, computed from the state database and the status board when they are asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, cached_property
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.app.context import Context
from penstock.control.deadlines import day_end
from penstock.control.local_days import days_by_zone
from penstock.control.select import Selection
from penstock.errors import DatabaseUnavailable, PenstockError
from penstock.expected import ExpectedRange
from penstock.projections.ledger_cache import LedgerCache

if TYPE_CHECKING:
    from penstock.app.status import StatusService
    from penstock.observe.metric_samples import ProjectionFacts, TableStatus
    from penstock.observe.metrics import Sample
    from penstock.projections.manifest import Manifest
    from penstock.projections.status_board import Board
    from penstock.state.metrics import StateMetrics
    from penstock.state.pause_days import Pauses

log = logging.getLogger(__name__)


class MetricService:
    """Computes metrics. It keeps what the ledger determines until the ledger changes. Safe in several threads."""

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status
        self._tables: LedgerCache[TableStatus] = LedgerCache(1)
        self._lock = threading.Lock()
        self._manifest: tuple[str | None, Manifest] | None = None
        self._projections: ProjectionFacts | None = None

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics as text for Prometheus, in the format that an Accept header prefers, and its media type. Raises
        ConfigError if the extra `console` is not installed.

        >>> ws.metrics.exposition()[0].decode()
        """
        from penstock.observe.exposition import exposition

        return exposition(self.samples, accept)

    def samples(self) -> list[Sample]:
        """The values of all metrics of the workspace. Metrics of the status board are left out while its files cannot
        be read. Raises DatabaseUnavailable if the state database does not respond.

        >>> [sample for sample in ws.metrics.samples() if sample.value]
        """
        from penstock.observe import metric_samples as made
        from penstock.observe import metrics as declared
        from penstock.observe.metrics import Sample

        settings, now = self._context.settings, self._context.now()
        tables = sorted(f"{asset.source}.{name}" for name, asset in settings.assets.items())
        state = self._state.read({name: source.quotas for name, source in settings.sources.items()})
        status, projections = self._readable()
        return [
            Sample(declared.BUILD, (__version__,), 1),
            Sample(declared.WORKSPACE, (settings.tenant, settings.workspace), 1),
            *made.state_samples(tables, sorted(settings.sources), state, now),
            *made.status_samples(tables, status, now),
            *(made.projection_samples(projections, state) if projections is not None else ()),
        ]

    @cached_property
    def _state(self) -> StateMetrics:
        from penstock.state.metrics import StateMetrics

        return StateMetrics(self._context.database, self._context.ledger)

    def _readable(self) -> tuple[TableStatus | None, ProjectionFacts | None]:
        """The facts of the projections; None for what cannot be read. The log has the error."""
        try:
            return self._table_status(), self._projection_facts()
        except DatabaseUnavailable:
            raise
        except PenstockError as error:
            log.warning("metrics.incomplete", extra={"facts": {"error": str(error)}})
            return None, None

    def _table_status(self) -> TableStatus:
        """The status of the expected partitions, kept until the ledger, the days, a pause or a deadline changes it."""
        from penstock.state.pause_days import read_pauses

        def moment() -> Hashable:
            days = days_by_zone(self._context.settings, self._context.now())
            return (self._context.ledger.newest(), days, read_pauses(self._context.database))

        def compute() -> tuple[TableStatus, int | None]:
            pauses = read_pauses(self._context.database)
            board = self._status.board(Selection())
            return self._read_board(board, pauses), board.next_deadline()

        return self._tables.get("all", moment, self._context.now, compute)

    def _read_board(self, board: Board, pauses: Pauses) -> TableStatus:
        from penstock.observe.metric_samples import TableStatus

        ranges = self._context.ranges(Selection())
        frozen = [past for span in ranges if (past := _frozen_days(span)) is not None]
        missing = board.first_unattempted([*pauses.days_of(ranges), *frozen])
        zones = {customer.id: customer.time_zone for customer in self._context.settings.customers}
        ends = cache(day_end)
        due: dict[str, datetime] = {}
        for source, customer_id, query_name, day in missing:
            moment = ends(day, zones.get(customer_id, "UTC"))
            table = f"{source}.{query_name}"
            due[table] = min(moment, due.get(table, moment))
        counts = board.counts(["source", "query"])
        return TableStatus(
            {(f"{row['source']}.{row['query']}", row["display"]): row["n"] for row in counts},
            {(f"{source}.{name}", reason.value): count for source, name, reason, count in board.stale_by_asset()},
            due,
        )

    def _projection_facts(self) -> ProjectionFacts:
        """The facts of the files of the manifest, read once for each manifest."""
        from penstock.observe.metric_samples import ProjectionFacts
        from penstock.projections.manifest import ManifestPointer

        with self._lock:
            found = ManifestPointer(self._context.database, self._context.lake).read(self._manifest)
            if self._projections is None or found != self._manifest:
                self._projections = ProjectionFacts(found[1].cursor.position, self._finished_runs(found[1]))
                self._manifest = found
            return self._projections

    def _finished_runs(self, manifest: Manifest) -> Mapping[str, int]:
        from penstock.projections.run_files import read_runs

        table = read_runs(self._context.lake, manifest.runs, ["run_id", "state", "finished_at"])
        return dict(_counted(zip(table["state"].to_pylist(), table["finished_at"].to_pylist(), strict=True)))


def _counted(runs: Iterator[tuple[str, datetime | None]]) -> Iterator[tuple[str, int]]:
    counts: dict[str, int] = {}
    for state, finished_at in runs:
        if finished_at is not None:
            counts[state.lower()] = counts.get(state.lower(), 0) + 1
    yield from sorted(counts.items())


def _frozen_days(span: ExpectedRange) -> ExpectedRange | None:
    """The days of a range that its source no longer serves: they are not due."""
    if span.frozen_before is None or span.frozen_before <= span.first:
        return None
    last = min(span.last, span.frozen_before - timedelta(days=1))
    return ExpectedRange(span.source, span.customer_id, span.query_name, span.first, last)

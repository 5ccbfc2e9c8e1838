"""A page of events: folded together and written once. It is read in pieces, so that few events are in memory at a
time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.projections.fact import OF_A_RUN, Cursor, Fact, understood
from penstock.projections.graph import Ints
from penstock.projections.publications import publications
from penstock.projections.runs import FoldedRun
from penstock.projections.status import partials

PIECE = 20_000  # events in memory at a time

FoldRun = Callable[[], FoldedRun]  # folds a run from all its events up to now
PrefoldedRuns = Mapping[str, FoldRun]


class Events(Protocol):
    def after(self, cursor: Cursor, limit: int) -> tuple[list[Fact], Cursor]: ...

    def exported(self) -> Iterator[list[Fact]]: ...

    def of_run(self, run_id: str, until: Cursor | None = None) -> list[Fact]: ...


@dataclass(slots=True)
class EventPage:
    """The folded events of a page, as far as they were read."""

    events: Events
    inputs: Callable[[Sequence[Fact]], pa.Table]  # the input runs of these finished tasks
    runs: dict[str, FoldedRun]  # in memory: from earlier pages, and with events in this page
    written: Collection[str]  # runs with events in earlier pages
    is_expired: Callable[
        [str], bool
    ]  # whether retention deleted the tasks of a run: later events about it change nothing
    prefolded: PrefoldedRuns
    cursor: Cursor
    size: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    status_rows: list[pa.Table] = field(default_factory=list)  # rows about partitions
    consumed: list[pa.Table] = field(default_factory=list)
    publications: list[pa.Table] = field(default_factory=list)
    changed: dict[str, Ints | None] = field(default_factory=dict)  # changed tasks by run; None means all of them
    _over: set[str] = field(default_factory=set)  # prefolded runs whose last event is in this page

    def add(self, facts: Sequence[Fact], cursor: Cursor) -> None:
        """Fold a piece of the page."""
        self.size += len(facts)
        self.cursor = cursor
        self.unknown += count_unknown_events(facts)
        self.status_rows.append(partials(facts))
        self.publications.append(publications(facts))
        finished = [fact for fact in facts if fact.type == "TaskFinished" and fact.payload.get("consumed")]
        if finished:
            self.consumed.append(self.inputs(finished))
        by_run: dict[str, list[Fact]] = {}
        for fact in facts:
            if fact.run_id is not None and fact.type in OF_A_RUN and understood(fact):
                by_run.setdefault(fact.run_id, []).append(fact)
        for run_id, some in by_run.items():
            if not self.is_expired(run_id):
                self._fold_run(run_id, some)

    def _fold_run(self, run_id: str, facts: Sequence[Fact]) -> None:
        run = self.runs.get(run_id)
        if run is not None:
            more, known = run.add(facts), self.changed.get(run_id, np.empty(0, np.int64))
            self.changed[run_id] = None if known is None else np.union1d(known, more)
            return
        self.changed[run_id] = None
        if run_id in self.prefolded:
            if any(fact.type == "RunFinished" for fact in facts):
                self._over.add(run_id)
        elif run_id in self.written:
            self.runs[run_id] = FoldedRun.of(self.events.of_run(run_id, self.cursor))
        else:  # the first events of the run
            self.runs[run_id] = FoldedRun.of(facts)

    def folded(self, run_id: str) -> FoldedRun:
        """Return a run with events in this page, folded from all its events up to the end of the page. A prefolded run
        is used if its last event is in the page, so that no event of it lies beyond."""
        run = self.runs.get(run_id)
        if run is None:
            known = self.prefolded[run_id]() if run_id in self._over else None
            run = self.runs[run_id] = known or FoldedRun.of(self.events.of_run(run_id, self.cursor))
        return run


def count_unknown_events(facts: Iterable[Fact]) -> Counter[str]:
    """Count the events of types and versions that the folds do not understand."""
    return Counter(f"{fact.type}/{fact.version}" for fact in facts if not understood(fact))

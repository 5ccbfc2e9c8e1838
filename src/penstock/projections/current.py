"""The projections as of now: the files of the manifest, merged with the events of the ledger after them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.lake import Lake
from penstock.lake.protocol import LakeUnavailable
from penstock.projections.fact import OF_A_RUN, PAGE, Fact, understood
from penstock.projections.manifest import Manifest, ManifestPointer, ProjectionsLost, edges_path, tasks_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from penstock.projections.event_page import Events
    from penstock.projections.runs import FoldedRun

_REPEATED = (
    "source",
    "customer_id",
    "query_name",
    "last_attempt_run_id",
    "last_attempt_outcome",
    "last_materialization_run_id",
    "last_materialization_code_version",
    "published_run_id",
)


@dataclass(frozen=True, slots=True)
class Current:
    """The projections at one moment. Files and events are read lazily, and Arrow is imported only to read them."""

    lake: Lake
    events: Events
    inputs: Callable[[Sequence[Fact]], pa.Table]
    owner: tuple[str, str]
    manifest: Manifest
    news: Sequence[Fact]

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Translate an error that a missing or damaged file causes while an engine scans it into ProjectionsLost, which
        names the file. An error of the object storage that has passed when the files are read again is
        LakeUnavailable."""
        try:
            yield
        except _scan_errors() as error:
            if lost := self.damage():
                raise lost from error
            if not self.lake.opens_by_path and isinstance(error, _stream_errors()):
                raise LakeUnavailable(f"cannot read the projections in the lake: {error}") from error
            raise

    def damage(self) -> ProjectionsLost | None:
        """Return the error of the first missing or damaged file of the manifest, or None if all are intact."""
        from penstock.projections import files

        for path in sorted(self.manifest.files()):
            try:
                files.read(self.lake, path)
            except ProjectionsLost as lost:
                return lost
        return None

    # --- partition status -----------------------------------------------------------------------------------------

    def status_base(self) -> ds.Dataset | None:
        """The rows of the last compaction."""
        if self.manifest.status_base is None:
            return None
        from penstock.projections import files
        from penstock.projections.status import PARTIAL

        return files.dataset(self.lake, [self.manifest.status_base], PARTIAL, _REPEATED)

    def files_by_path(self) -> dict[str, str] | None:
        """The files of partition status and of input runs with the addresses under which DuckDB reads them, several
        times faster than through Arrow. None if DuckDB cannot open them. Newer events are in `event_rows` and
        `event_inputs`."""
        if not self.lake.opens_by_path:
            return None
        base = [self.manifest.status_base] if self.manifest.status_base else []
        paths = (*base, *self.manifest.status_deltas, *self.manifest.consumed)
        return {path: self.lake.uri(path) for path in paths}

    def whole_status_base(self) -> ds.Dataset | None:
        """The same with every column that other tools read."""
        from penstock.projections import files
        from penstock.projections.status_file import FILE

        return files.dataset(self.lake, [self.manifest.status_base], FILE) if self.manifest.status_base else None

    def status_news(self) -> pa.Table:
        """The rows since the compaction, one per partition with new events; to be joined with the base."""
        import pyarrow as pa

        from penstock.projections import files
        from penstock.projections.status import PARTIAL, joined, partials

        deltas = files.read_all(self.lake, self.manifest.status_deltas, PARTIAL)
        rows = pa.concat_tables([deltas, partials(self.news)])
        return joined(rows) if len(rows) else rows

    def event_rows(self) -> pa.Table | None:
        """The rows of the events that are newer than the files; None without any."""
        if not self.news:
            return None
        from penstock.projections.status import partials

        return partials(self.news)

    def event_inputs(self) -> pa.Table | None:
        """The input runs of the events that are newer than the files; None without any."""
        finished = [fact for fact in self.news if fact.type == "TaskFinished" and fact.payload.get("consumed")]
        return self.inputs(finished) if finished else None

    def consumed(self) -> list[ds.Dataset | pa.Table]:
        from penstock.projections import files
        from penstock.projections.input_runs import CONSUMED

        found: list[ds.Dataset | pa.Table] = []
        if self.manifest.consumed:
            found.append(files.dataset(self.lake, self.manifest.consumed, CONSUMED))
        newer = self.event_inputs()
        return found if newer is None else [*found, newer]

    def publications(self) -> pa.Table:
        """The first publication of each partition, within the time after its day that counts."""
        from penstock.projections import files
        from penstock.projections.publications import PUBLICATIONS, first_publications, publications

        parts = [files.read(self.lake, file.path, PUBLICATIONS.names) for file in self.manifest.publications]
        news = publications(self.news)
        return parts[0] if len(parts) == 1 and not len(news) else first_publications([*parts, news])

    # --- runs -------------------------------------------------------------------------------------------------------

    def runs(self) -> pa.Table:
        """Return every run, oldest first."""
        import pyarrow as pa

        from penstock.projections.run_files import read_runs
        from penstock.projections.runs import RUNS, run_row

        kept = read_runs(self.lake, self.manifest.runs)
        fresh = [run_row(run_id, run, self.owner) for run_id, run in self._fresh()]
        if not fresh:
            return kept
        rows = {row["run_id"]: row for row in [*kept.to_pylist(), *fresh]}
        return pa.Table.from_pylist([rows[run_id] for run_id in sorted(rows)], schema=RUNS)

    def runs_before(self, run_id: str | None, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return the newest runs, or those older than a run, newest first; and the total count."""
        import pyarrow.compute as pc

        found = self.runs()
        older = found if run_id is None else found.filter(pc.less(found.column("run_id"), run_id))
        return older.slice(max(0, len(older) - limit)).to_pylist()[::-1], len(found)

    def tasks(self, run_id: str | None = None) -> list[ds.Dataset | pa.Table]:
        """The tasks of one run, or of all runs inside retention."""
        from penstock.projections.rows import TASKS, task_rows

        return self._of_runs(run_id, TASKS, "task_key", tasks_path, task_rows)

    def dep_satisfaction(self, run_id: str | None = None) -> list[ds.Dataset | pa.Table]:
        from penstock.projections.rows import DEP_SATISFACTION, edge_rows

        return self._of_runs(run_id, DEP_SATISFACTION, "downstream_task_key", edges_path, edge_rows)

    def _of_runs(
        self,
        run_id: str | None,
        schema: pa.Schema,
        key: str,
        path: Callable[[str, str], str],
        rows: Callable[..., pa.Table],
    ) -> list[ds.Dataset | pa.Table]:
        from penstock.projections import files

        fresh = {run: folded for run, folded in self._fresh() if run_id in (None, run)}
        found: list[ds.Dataset | pa.Table] = [rows(run, folded.fold, self.owner) for run, folded in fresh.items()]
        wanted = {
            run: parts for run, parts in self.manifest.parts.items() if run_id in (None, run) and run not in fresh
        }
        whole = [path(run, parts[0]) for run, parts in wanted.items() if len(parts) == 1]
        if whole:
            found.append(files.dataset(self.lake, whole, schema))
        for run, parts in wanted.items():
            if len(parts) > 1:
                found.append(files.newest([files.read(self.lake, path(run, part)) for part in parts], key))
        return found or [schema.empty_table()]

    def _fresh(self) -> Iterator[tuple[str, FoldedRun]]:
        """Yield the runs with events after the manifest, folded from all their events: the size of a run is bounded."""
        from penstock.projections.runs import FoldedRun

        run_ids = {fact.run_id for fact in self.news if fact.type in OF_A_RUN and understood(fact)}
        for run_id in sorted(run for run in run_ids if run):
            yield run_id, FoldedRun.of(self.events.of_run(run_id))


def _scan_errors() -> tuple[type[Exception], ...]:
    """The errors of the engines that scan files. Arrow may not be imported."""
    import duckdb

    arrow = sys.modules.get("pyarrow")
    return (duckdb.Error, OSError, *(() if arrow is None else (arrow.ArrowException,)))


def _stream_errors() -> tuple[type[Exception], ...]:
    """The errors of a scan whose file could not be read to its end. DuckDB reports a failed Arrow stream as invalid
    input."""
    import duckdb

    return (duckdb.IOException, duckdb.InvalidInputException, OSError)


def load_current(
    head: ManifestPointer,
    lake: Lake,
    events: Events,
    inputs: Callable[[Sequence[Fact]], pa.Table],
    owner: tuple[str, str],
) -> Current:
    """Return the projections at this moment."""
    _, manifest = head.read()
    news: list[Fact] = []
    cursor = manifest.cursor
    while True:
        page, cursor = events.after(cursor, PAGE)
        news += page
        if len(page) < PAGE:
            return Current(lake, events, inputs, owner, manifest, news)

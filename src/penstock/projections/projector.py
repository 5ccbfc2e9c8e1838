"""Advances the projections: folds new events, writes small files, and swaps the manifest at the end.

Write order: files, manifest, database row that points to it. A crash in between leaves files that nothing refers to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pyarrow as pa

from penstock.clock import Clock
from penstock.failpoint import reach
from penstock.lake import Lake
from penstock.lake.concurrent_writes import ConcurrentWrites
from penstock.partition import new_ulid, ulid_time
from penstock.projections import files, publications
from penstock.projections.event_page import PIECE, EventPage, Events, PrefoldedRuns
from penstock.projections.fact import PAGE, Cursor, Fact
from penstock.projections.graph import Ints
from penstock.projections.input_runs import CONSUMED
from penstock.projections.manifest import FOLDER, Manifest, ManifestPointer, edges_path, made_at, new_path, tasks_path
from penstock.projections.publish_status import is_due, publish
from penstock.projections.rows import edge_rows, task_rows
from penstock.projections.run_files import read_runs, with_rows
from penstock.projections.runs import FoldedRun, run_row
from penstock.projections.status import PARTIAL, joined
from penstock.projections.status_file import FILE, with_spec_columns
from penstock.projections.status_merge import merged

_MOST_DELTAS = 16
_MOST_PARTS = 16
_SMALLEST_COMPACTION = 50_000  # rows of deltas: too few to compact
_SMALL_WAIT, _LARGEST_WAIT = 200_000, 500_000  # rows of deltas: a compaction needs 2 kB of memory for each
_SMALL_BASE = 200_000  # rows: rewriting such a base takes a second
_ORPHAN_AGE = timedelta(days=1)
_VERIFY_EVERY = timedelta(minutes=1)  # how often the published file is compared with the manifest

Pieces = Iterator[tuple[list[Fact], Cursor]]


@dataclass(slots=True)
class Projector:
    """Keeps active runs in memory, so that the cost of a batch grows with the tasks that it changes."""

    head: ManifestPointer
    lake: Lake
    events: Events
    inputs: Callable[[Sequence[Fact]], pa.Table]  # the input runs of finished tasks
    owner: tuple[str, str]
    clock: Clock
    keep_runs: timedelta
    _runs: dict[str, FoldedRun] = field(default_factory=dict)
    _at: str | None = None  # path of the manifest that the runs in memory belong to
    _manifest: Manifest = field(default_factory=Manifest)  # its content
    _verified: datetime | None = None  # when the published file was last compared with the manifest

    def advance(self, prefolded: PrefoldedRuns | None = None) -> int:
        """Fold all new events and return how many. Of concurrent calls, the second finds nothing to do. Runs that the
        caller has folded to their end can be passed as `prefolded`: they are not folded again."""
        done = 0
        prefolded = prefolded or {}
        try:
            while True:
                seen, manifest = self.head.read((self._at, self._manifest))
                if seen != self._at:
                    self._runs.clear()
                page: EventPage | None = None
                for piece, cursor in self._after(manifest.cursor, PIECE):
                    page = page or self._page(manifest, prefolded)
                    page.add(piece, cursor)
                    if page.size >= PAGE:
                        break
                new = manifest if page is None else self._without_expired(self._with(manifest, page), self.clock())
                if self._may_publish(new):
                    new = publish(self.lake, new, self.owner, self.clock())
                elif page is None:
                    self._at, self._manifest = seen, manifest
                    return done
                reach("project.written")
                self._at = self._swap(seen, manifest, new)
                reach("project.advanced")
                if self._at is None:  # another process was first, with the same events
                    self._runs.clear()
                    self.lake.delete(new.files() - manifest.files())
                    self._verified = None  # our published file may have replaced the other one
                else:
                    done += 0 if page is None else page.size
        except BaseException:  # the runs in memory may be ahead of the files
            self._runs.clear()
            self._at = None
            raise

    def rebuild(self, make: Maker | None = None) -> int:
        """Rebuild all projections from the ledger alone, exported segments included, and swap them in."""
        self._runs.clear()
        self._at = None
        new, done = make(self, self._everything(PAGE)) if make else self._build(self._everything(PIECE))
        new = self._without_expired(new, self.clock())
        if self._may_publish(new):
            new = publish(self.lake, new, self.owner, self.clock())
        self._runs.clear()
        while True:  # another process may have advanced meanwhile: the newest events are folded again
            seen, old = self.head.read_if_there()
            if self._swap(seen, old, new) is not None:
                break
        self._delete_orphans(new)
        return done

    def sweep(self, stale: pa.Table) -> int:
        """Write a base in which these partitions are marked as stale, with time and reasons."""
        while True:
            self.advance()
            seen, manifest = self.head.read()
            new = publish(self.lake, self._merged(manifest, stale=stale), self.owner, self.clock())
            self._at = self._swap(seen, manifest, new)
            if self._at is not None:
                return len(stale)

    def _may_publish(self, manifest: Manifest) -> bool:
        """Whether `partition_status.parquet` must be written from this manifest."""
        if manifest.status_base is None and not manifest.status_deltas:
            return False
        now = self.clock()
        verify = self._verified is None or now - self._verified >= _VERIFY_EVERY
        if verify:
            self._verified = now
        return is_due(self.lake, manifest, now, verify=verify)

    def _swap(self, seen: str | None, old: Manifest, new: Manifest) -> str | None:
        """Make `new` the manifest if `old` still is; deletes files that no reader can use any more."""
        now = self.clock()
        self.lake.delete(old.deletable(now))
        self._manifest = old.after(new, seen, now)
        return self.head.advance(seen, self._manifest, now)

    def _delete_orphans(self, manifest: Manifest) -> None:
        """Delete files that are in no manifest and at least a day old: left by crashed or losing processes."""
        known, before = manifest.files(), new_ulid()
        old = (self.clock() - _ORPHAN_AGE).timestamp()
        self.lake.delete(
            entry.path
            for entry in list(self.lake.list(FOLDER))
            if entry.path not in known and not entry.path.endswith(".json") and made_at(entry.path, before) < old
        )

    def _build(self, pieces: Pieces) -> tuple[Manifest, int]:
        new, done = Manifest(), 0
        page = self._page(new, {})
        for piece, cursor in pieces:
            page.add(piece, cursor)
            done += len(piece)
            if page.size >= PAGE:
                new = self._with_private(new, page)
                page = self._page(new, {})
        if page.size:
            new = self._with_private(new, page)
        if new.status_deltas:
            before, new = new, self._merged(new)
            self.lake.delete(before.files() - new.files())
        return new, done

    def _with_private(self, manifest: Manifest, page: EventPage) -> Manifest:
        """Add a page to a manifest that no reader has seen: replaced files can be deleted at once."""
        new = self._with(manifest, page)
        self.lake.delete(manifest.files() - new.files())
        return new

    def _everything(self, size: int) -> Pieces:
        for piece in self.events.exported():
            yield piece, Cursor()
        yield from self._after(Cursor(), size)

    def _after(self, cursor: Cursor, size: int) -> Pieces:
        while True:
            piece, cursor = self.events.after(cursor, size)
            if piece:
                yield piece, cursor
            if len(piece) < size:
                return

    # --- one page of events -------------------------------------------------------------------------------------

    def _page(self, manifest: Manifest, prefolded: PrefoldedRuns) -> EventPage:
        return EventPage(
            self.events, self.inputs, self._runs, manifest.parts, self._is_expired(manifest), prefolded, manifest.cursor
        )

    def _is_expired(self, manifest: Manifest) -> Callable[[str], bool]:
        """Whether retention deleted the tasks of a run. Only runs older than retention are looked up."""
        oldest, known = ulid_time(self.clock() - self.keep_runs), list[set[str]]()

        def is_expired(run_id: str) -> bool:
            if run_id >= oldest or run_id in manifest.parts:
                return False
            if not known:
                known.append(set(read_runs(self.lake, manifest.runs, ["run_id"])["run_id"].to_pylist()))
            return run_id in known[0]

        return is_expired

    def _with(self, manifest: Manifest, page: EventPage) -> Manifest:
        new = replace(manifest, cursor=page.cursor, unknown=added(manifest.unknown, page.unknown))
        status_rows = joined(pa.concat_tables(page.status_rows))
        page.status_rows.clear()
        with ConcurrentWrites(self.lake) as writes:  # a manifest must not name files that are not written yet
            new = self._with_status(new, status_rows, writes)
            new = self.with_consumed(new, page.consumed, writes)
            new = self.with_publications(new, page.publications, writes)
            return self._with_runs(new, page, writes)

    def _without_expired(self, manifest: Manifest, now: datetime) -> Manifest:
        """Apply retention: delete tasks and edges of runs that ended long ago; their row in `runs` stays."""
        oldest = ulid_time(now - self.keep_runs)
        if not any(run_id < oldest for run_id in manifest.parts):
            return manifest
        rows = {
            row["run_id"]: row for row in read_runs(self.lake, manifest.runs, ["run_id", "finished_at"]).to_pylist()
        }
        gone = set(expired(rows, now - self.keep_runs))
        return replace(manifest, parts={run: parts for run, parts in manifest.parts.items() if run not in gone})

    def _with_status(self, manifest: Manifest, status_rows: pa.Table, writes: files.Creates) -> Manifest:
        if not len(status_rows):
            return manifest
        if self._wants_compaction(manifest, len(status_rows)):
            return self._merged(manifest, status_rows)
        path, deltas = new_path("partition_status"), manifest.status_deltas
        if len(deltas) >= _MOST_DELTAS:
            status_rows = joined(pa.concat_tables([files.read_all(self.lake, deltas, PARTIAL), status_rows]))
            deltas = ()
        files.write(writes, path, with_spec_columns(status_rows, self.owner))
        return replace(manifest, status_deltas=(*deltas, path))

    def _wants_compaction(self, manifest: Manifest, more: int) -> bool:
        """Whether a compaction is worth its cost, with so many additional rows. Many deltas of few rows beside a large
        base become one delta instead."""
        base = files.rows(self.lake, manifest.status_base) if manifest.status_base else 0
        if len(manifest.status_deltas) >= _MOST_DELTAS and base <= _SMALL_BASE:
            return True
        waiting = more + sum(files.rows(self.lake, path) for path in manifest.status_deltas)
        return waiting > most_waiting(base)

    def _merged(
        self, manifest: Manifest, status_rows: pa.Table | None = None, stale: pa.Table | None = None
    ) -> Manifest:
        """Merge base, deltas and the newest rows into one file of complete rows."""
        parts = [
            files.read_all(self.lake, manifest.status_deltas, PARTIAL),
            *([] if status_rows is None else [status_rows]),
        ]
        path, news = new_path("partition_status"), joined(pa.concat_tables(parts))
        rows = merged(self.lake, manifest.status_base, news, self.owner, stale)
        files.write_pieces(self.lake, path, FILE, rows, token=path)
        return replace(manifest, status_base=path, status_deltas=())

    def with_consumed(
        self, manifest: Manifest, consumed: Sequence[pa.Table], writes: files.Creates | None = None
    ) -> Manifest:
        """Add the input runs of finished tasks."""
        if not consumed:
            return manifest
        table, paths = pa.concat_tables(consumed), manifest.consumed
        if len(paths) >= _MOST_DELTAS:
            table, paths = pa.concat_tables([files.read_all(self.lake, paths, CONSUMED), table]), ()
        path = new_path("consumed")
        files.write(writes or self.lake, path, table)
        return replace(manifest, consumed=(*paths, path))

    def with_publications(
        self, manifest: Manifest, parts: Sequence[pa.Table], writes: files.Creates | None = None
    ) -> Manifest:
        """Add the first publications of partitions."""
        kept = publications.with_rows(self.lake, manifest.publications, parts, writes or self.lake)
        return replace(manifest, publications=kept)

    def _with_runs(self, manifest: Manifest, page: EventPage, writes: files.Creates) -> Manifest:
        if not page.changed:
            return manifest
        parts, rows = dict(manifest.parts), {}
        for run_id, changed in page.changed.items():
            run = page.folded(run_id)
            parts[run_id] = self._part(run_id, run, changed, parts.get(run_id, ()), writes)
            rows[run_id] = run_row(run_id, run, self.owner)
            if run.facts.end is not None:
                del self._runs[run_id]
        return replace(manifest, runs=with_rows(self.lake, manifest.runs, rows, writes), parts=parts)

    def _part(
        self, run_id: str, run: FoldedRun, changed: Ints | None, parts: tuple[str, ...], writes: files.Creates
    ) -> tuple[str, ...]:
        """Write the changed tasks of a run; if the run is over or was not in memory, write all its tasks."""
        whole = changed is None or run.facts.end is not None or len(parts) >= _MOST_PARTS
        name = new_ulid()
        tasks = task_rows(run_id, run.fold, self.owner, None if whole else changed)
        if whole and len(parts) == 1 and files.read(self.lake, tasks_path(run_id, parts[0])).equals(tasks):
            return parts  # a repeated event: a finished run is not written twice
        files.write_sorted(writes, tasks_path(run_id, name), tasks)
        edges = edge_rows(run_id, run.fold, self.owner, None if whole else changed)
        files.write_sorted(writes, edges_path(run_id, name), edges)
        return (name,) if whole else (*parts, name)


def most_waiting(base: int) -> int:
    """The number of rows in deltas beside a base of so many rows. A compaction rewrites the base, so the deltas of a
    large base may be larger: up to 10 million rows, at most 20 old rows are rewritten for each new one. Readers and
    compactions keep the deltas in memory, which bounds them."""
    return max(_SMALLEST_COMPACTION, min(base // 5, _SMALL_WAIT), min(base // 20, _LARGEST_WAIT))


Maker = Callable[[Projector, Pieces], tuple[Manifest, int]]


def added(known: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(known) + Counter(more))


def expired(rows: Mapping[str, Mapping[str, object]], before: datetime) -> list[str]:
    return [run_id for run_id, row in rows.items() if isinstance(at := row["finished_at"], datetime) and at < before]

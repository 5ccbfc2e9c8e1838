"""The files of the table `runs`: rows of later files replace those of earlier ones.

A pass writes the changed rows. Files of similar size are merged when there are many of them, so that each row is
rewritten a few times only, however many runs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake import Lake
from penstock.projections import files
from penstock.projections.manifest import RowsFile, new_path
from penstock.projections.runs import RUNS

_MOST_ALIKE = 16  # files per size class


def read_runs(lake: Lake, kept: Sequence[RowsFile], columns: Sequence[str] | None = None) -> pa.Table:
    """Return every run once, oldest first."""
    if not kept:
        return RUNS.empty_table() if columns is None else RUNS.empty_table().select(list(columns))
    whole = files.newest([files.read(lake, file.path, columns) for file in kept], "run_id")
    return whole.sort_by("run_id")


def with_rows(
    lake: Lake,
    kept: tuple[RowsFile, ...],
    rows: Mapping[str, Mapping[str, Any]],
    writes: files.Creates | None = None,
) -> tuple[RowsFile, ...]:
    """Add rows, by run, that replace those in the files. `writes` creates the new file, at once by default."""
    table = pa.Table.from_pylist([dict(rows[run_id]) for run_id in sorted(rows)], schema=RUNS)
    stay = _stay(kept, len(table))
    if merged := kept[stay:]:
        old = read_runs(lake, merged)
        mine = old.filter(pc.invert(pc.is_in(old["run_id"], value_set=table["run_id"])))
        table = pa.concat_tables([mine, table]).sort_by("run_id")
    path = new_path("runs")
    files.write(writes or lake, path, table)
    return (*kept[:stay], RowsFile(path, len(table)))


def _stay(kept: Sequence[RowsFile], more: int) -> int:
    """How many files stay unchanged when so many rows are added. The last files of a size class are merged when there
    are many; the result may make the next class too large, which is merged, too."""
    stay, size = len(kept), more
    while True:
        alike = 0
        while alike < stay and _size_class(kept[stay - 1 - alike].rows) <= _size_class(size):
            alike += 1
        if alike < _MOST_ALIKE:
            return stay
        size += sum(file.rows for file in kept[stay - alike : stay])
        stay -= alike


def _size_class(rows: int) -> int:
    found = 0
    while rows >= _MOST_ALIKE:
        rows, found = rows // _MOST_ALIKE, found + 1
    return found

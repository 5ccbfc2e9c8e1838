"""First publications of partitions, from which the completion of a day follows.

The fold is a minimum for each partition, so the order and the repetition of events change nothing. Publications long
after their day do not count: a backfill of history says nothing about lateness, and the projection stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake import Lake
from penstock.projections import files
from penstock.projections.fact import Fact, understood
from penstock.projections.manifest import RowsFile, new_path

COUNTED = timedelta(days=31)  # after the end of a day; later publications of it do not count
KEPT = timedelta(days=400)  # before the newest day of a file; older days are dropped

PUBLICATIONS = pa.schema(
    [
        pa.field("source", pa.string(), False),
        pa.field("query_name", pa.string(), False),
        pa.field("logical_date", pa.date32(), False),
        pa.field("customer_id", pa.string(), False),
        pa.field("published_at", pa.timestamp("us", tz="UTC"), False),
    ]
)
_KEY = ["source", "query_name", "logical_date", "customer_id"]


def publications(facts: Sequence[Fact]) -> pa.Table:
    """The first publication of each partition among these events."""
    found: dict[tuple[str, str, str, str], datetime] = {}
    for fact in facts:
        if fact.type == "PartitionPublished" and understood(fact):
            source, customer, query, day = fact.payload["partition_key"].split("/")
            key = (source, query, day, customer)
            found[key] = min(found.get(key, fact.occurred_at), fact.occurred_at)
    rows = [
        (source, query, date.fromisoformat(day), customer, at)
        for (source, query, day, customer), at in found.items()
        if at < datetime.combine(date.fromisoformat(day), time.min, UTC) + timedelta(days=1) + COUNTED
    ]
    columns = zip(*rows, strict=True) if rows else [()] * len(PUBLICATIONS)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, PUBLICATIONS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=PUBLICATIONS)


def first_publications(parts: Sequence[pa.Table]) -> pa.Table:
    """One row for each partition, with its earliest publication, without days that are too old."""
    rows = pa.concat_tables([PUBLICATIONS.empty_table(), *parts])
    if not len(rows):
        return rows
    newest: date = pc.max(rows["logical_date"]).as_py()
    if (newest - date.min) > KEPT:
        rows = rows.filter(pc.greater_equal(rows["logical_date"], pa.scalar(newest - KEPT, pa.date32())))
    found = rows.group_by(_KEY).aggregate([("published_at", "min")]).rename_columns([*_KEY, "published_at"])
    order = [(name, "ascending") for name in ("source", "query_name", "logical_date", "published_at", "customer_id")]
    return found.select(PUBLICATIONS.names).cast(PUBLICATIONS).sort_by(order)


def with_rows(
    lake: Lake, known: tuple[RowsFile, ...], parts: Sequence[pa.Table], writes: files.Creates
) -> tuple[RowsFile, ...]:
    """Add rows in a new file. It takes in the newest files that are not much larger, so that there are few files and
    each row is rewritten a few times only."""
    rows, kept = first_publications(parts), list(known)
    if not len(rows):
        return known
    while kept and kept[-1].rows <= 2 * len(rows):
        rows = first_publications([files.read_all(lake, [kept.pop().path], PUBLICATIONS), rows])
    path = new_path("publications")
    files.write_sorted(writes, path, rows)
    return (*kept, RowsFile(path, len(rows)))


def first_day(rows: pa.Table, source: str, query_name: str) -> date | None:
    """The first day of a table with a publication that counts; None without any."""
    mine = rows.filter(pc.and_(pc.equal(rows["source"], source), pc.equal(rows["query_name"], query_name)))
    found: date | None = pc.min(mine["logical_date"]).as_py()
    return found


def completions(rows: pa.Table, source: str, query_name: str, needed: Mapping[date, int]) -> dict[date, datetime]:
    """When so many partitions of each day were published first, for the days on which they were. `rows` has one row
    for each partition, in the order of `first_publications`."""
    mine = rows.filter(pc.and_(pc.equal(rows["source"], source), pc.equal(rows["query_name"], query_name)))
    days = mine["logical_date"].combine_chunks()
    times = mine["published_at"].combine_chunks()
    found: dict[date, datetime] = {}
    start = 0
    for run in pc.value_counts(days).to_pylist():  # in the order of their first rows, so each day is one block
        day, count = run["values"], run["counts"]
        wanted = needed.get(day)
        if wanted is not None and 1 <= wanted <= count:
            found[day] = times[start + wanted - 1].as_py()
        start += count
    return found

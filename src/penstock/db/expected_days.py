"""Expected ranges as SQL rows: one JSON parameter that the database expands into days.

A million expected partitions need no stored rows, no temporary table and no Python objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey

_SMALLEST_PART = 1_000
_GROWTH = 8

# The common table expression `ranges`, one row for each range; it takes the parameter `:ranges` (see `ranges_json`).
# The last three columns (limits of retries, the pause of a selector) are null where the parameter does not name them.
EXPECTED_RANGES = {
    "sqlite": """
        ranges AS MATERIALIZED (
            SELECT json_extract(value, '$[0]') AS source, json_extract(value, '$[1]') AS customer_id,
                json_extract(value, '$[2]') AS query_name, json_extract(value, '$[3]') AS first_day,
                json_extract(value, '$[4]') AS last_day, json_extract(value, '$[5]') AS over_day,
                json_extract(value, '$[6]') AS utc_offset, json_extract(value, '$[7]') AS max_attempts,
                json_extract(value, '$[8]') AS max_age, json_extract(value, '$[9]') AS pause_no
            FROM json_each(:ranges)
        )""",
    "postgresql": """
        ranges AS MATERIALIZED (
            SELECT r ->> 0 AS source, r ->> 1 AS customer_id, r ->> 2 AS query_name, (r ->> 3)::date AS first_day,
                (r ->> 4)::date AS last_day, (r ->> 5)::date AS over_day, (r ->> 6)::integer AS utc_offset,
                (r ->> 7)::integer AS max_attempts, (r ->> 8)::bigint AS max_age, (r ->> 9)::bigint AS pause_no
            FROM jsonb_array_elements(CAST(:ranges AS jsonb)) r
        )""",
}

# The same with the key and the days alone, for statements that count.
DAY_BOUNDS = {
    "sqlite": """
        ranges AS MATERIALIZED (
            SELECT json_extract(value, '$[0]') AS source, json_extract(value, '$[1]') AS customer_id,
                json_extract(value, '$[2]') AS query_name, json_extract(value, '$[3]') AS first_day,
                json_extract(value, '$[4]') AS last_day
            FROM json_each(:ranges)
        )""",
    "postgresql": EXPECTED_RANGES["postgresql"],
}

# `ranges` and `expected`, one row for each day of a range, for `WITH RECURSIVE`; with the same parameter.
EXPECTED_DAYS = {
    "sqlite": f"""{EXPECTED_RANGES["sqlite"]},
        calendar(day) AS (
            SELECT MIN(first_day) FROM ranges
            UNION ALL SELECT date(day, '+1 day') FROM calendar WHERE day < (SELECT MAX(last_day) FROM ranges)
        ),
        expected AS (
            SELECT r.source, r.customer_id, r.query_name, c.day AS logical_date, r.over_day, r.utc_offset,
                r.max_attempts, r.max_age, r.pause_no
            FROM ranges r JOIN calendar c ON c.day BETWEEN r.first_day AND r.last_day
        )""",
    "postgresql": f"""{EXPECTED_RANGES["postgresql"]},
        expected AS (
            SELECT r.source, r.customer_id, r.query_name, day::date AS logical_date, r.over_day, r.utc_offset,
                r.max_attempts, r.max_age, r.pause_no
            FROM ranges r, generate_series(r.first_day, r.last_day, interval '1 day') day
        )""",
}


def ranges_json(ranges: Iterable[ExpectedRange]) -> str:
    """The value of the parameter `:ranges`; empty ranges are left out."""
    rows = [
        [r.source, r.customer_id, r.query_name, r.first, r.last, r.over or r.last, r.utc_offset]
        for r in ranges
        if r.first <= r.last
    ]
    return orjson.dumps(rows).decode()


def growing_parts(
    ranges: Iterable[ExpectedRange], after: PartitionKey | None, size: int
) -> Iterator[list[ExpectedRange]]:
    """The ranges in key order from the customer and query of `after` on, in parts of about `size` partitions; each part
    is larger than the one before. A page is usually in the first part, and a search of everything takes few parts."""
    begin = None if after is None else after[:3]
    ordered = sorted(ranges, key=lambda span: (span.source, span.customer_id, span.query_name, span.first))
    size, part, held, owner = max(size, _SMALLEST_PART), list[ExpectedRange](), 0, ("", "", "")
    for span in ordered:
        before, owner = owner, (span.source, span.customer_id, span.query_name)
        if begin is not None and owner < begin:
            continue
        if held >= size and owner != before:  # ranges of one customer and query may overlap
            yield part
            size, part, held = size * _GROWTH, [], 0
        part.append(span)
        held += len(span)
    if part:
        yield part

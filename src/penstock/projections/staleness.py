"""Staleness of a partition, computed at query time: by time, by its inputs, by its code; all reasons at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from penstock.digests import same_content_sql
from penstock.expected import ExpectedRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StaleReason(StrEnum):
    FRESHNESS_POLICY = "FRESHNESS_POLICY"  # older than the policy allows, and a new run could be fresher
    UPSTREAM_CHANGED = "UPSTREAM_CHANGED"  # an input run is not trusted any more, or an input is missing
    CODE_CHANGED = "CODE_CHANGED"  # computed by an older version of its definition


@dataclass(frozen=True, slots=True)
class Window:
    """The input window of one partition in one table: so many days, of the same customer or of all."""

    source: str
    query_name: str
    days: int
    own: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """The staleness policy of one asset."""

    source: str
    query_name: str
    code_version: str
    code_since: datetime | None  # when this version was first used
    max_lag: timedelta | None
    restate_days: int
    windows: tuple[Window, ...] = ()  # of a model
    same_code: tuple[str, ...] = ()  # code versions of earlier releases for the same definition


Row = tuple[object, ...]

WINDOWS = {
    "source": "VARCHAR",
    "query_name": "VARCHAR",
    "input_source": "VARCHAR",
    "input_query_name": "VARCHAR",
    "back": "INTEGER",
    "own": "BOOLEAN",
}
POLICIES = {
    "source": "VARCHAR",
    "query_name": "VARCHAR",
    "code_version": "VARCHAR",
    "code_since": "BIGINT",
    "max_lag": "BIGINT",
    "restate_days": "INTEGER",
    "same_code": "VARCHAR[]",
}
EXPECTED = {
    "n": "INTEGER",
    "source": "VARCHAR",
    "customer_id": "VARCHAR",
    "query_name": "VARCHAR",
    "first": "DATE",
    "last": "DATE",
    "over": "DATE",
}


def policy_rows(policies: Iterable[Policy]) -> list[Row]:
    """Times and durations are in microseconds: adding a million integers is fast, adding zoned timestamps is slow."""
    return [
        (
            p.source,
            p.query_name,
            p.code_version,
            None if p.code_since is None else microseconds(p.code_since),
            None if p.max_lag is None else p.max_lag // timedelta(microseconds=1),
            p.restate_days,
            list(p.same_code),
        )
        for p in policies
    ]


def window_rows(policies: Iterable[Policy]) -> list[Row]:
    """One row for each day of each window: an equality join is faster than a range join."""
    return [
        (p.source, p.query_name, window.source, window.query_name, back, window.own)
        for p in policies
        for window in p.windows
        for back in range(window.days)
    ]


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(found: int | None) -> datetime | None:
    return None if found is None else _EPOCH + timedelta(microseconds=found)


def expected_rows(expected: Iterable[ExpectedRange]) -> list[Row]:
    """The ranges, numbered in key order: sorting by number and day is sorting by key."""
    rows = sorted(
        {(e.source, e.customer_id, e.query_name, e.first, e.last, e.over or e.last) for e in expected if len(e)}
    )
    return [(number, *row) for number, row in enumerate(rows)]


# An input is changed if another run of it is trusted now, or none, unless the rows are the same.
_CHANGED_SQL = f"""
SELECT c.source, c.customer_id, c.query_name, c.logical_date, min(u.authority_at) AS upstream_since
FROM consumed c
JOIN latest m ON m.source = c.source AND m.customer_id = c.customer_id AND m.query_name = c.query_name
    AND m.logical_date = c.logical_date AND m.last_materialization_run_id = c.run_id
LEFT JOIN latest u ON u.source = c.input_source AND u.customer_id = c.input_customer_id
    AND u.query_name = c.input_query_name AND u.logical_date = c.input_logical_date
WHERE u.last_materialization_run_id IS NULL OR NOT u.available
    OR (u.last_materialization_run_id <> c.input_run_id
        AND NOT ({same_content_sql("u.content_digest", "c.input_content_digest")}))
GROUP BY c.source, c.customer_id, c.query_name, c.logical_date
"""
# Partitions that are readable in the window of a partition and are not among its inputs came later. Derived partitions
# with more readable partitions than inputs are found by counting; only theirs are compared one by one.
_ITS_WINDOWS = "windows w ON w.source = m.source AND w.query_name = m.query_name"
_READABLE = "u.available AND u.published_run_id = u.last_materialization_run_id"
_IN_WINDOW = """u.source = w.input_source AND u.query_name = w.input_query_name
    AND u.logical_date = m.logical_date - w.back"""
_MADE_BY = """c.source = m.source AND c.customer_id = m.customer_id AND c.query_name = m.query_name
    AND c.logical_date = m.logical_date AND c.run_id = m.last_materialization_run_id"""
_INPUT_OF = """c.input_source = u.source AND c.input_customer_id = u.customer_id AND c.input_query_name = u.query_name
    AND c.input_logical_date = u.logical_date"""
_SLICE = "m.source, m.customer_id, m.query_name, m.logical_date"
_GROWN_SQL = f"""
SELECT {_SLICE} FROM (
    SELECT {_SLICE}, sum(u.n) AS n FROM latest m JOIN {_ITS_WINDOWS} AND NOT w.own
    JOIN (SELECT source, query_name, logical_date, count(*) AS n FROM latest u WHERE {_READABLE} GROUP BY ALL) u
        ON {_IN_WINDOW} WHERE m.available GROUP BY {_SLICE}
    UNION ALL
    SELECT {_SLICE}, count(*) FROM latest m JOIN {_ITS_WINDOWS} AND w.own
    JOIN latest u ON {_IN_WINDOW} AND u.customer_id = m.customer_id WHERE m.available AND {_READABLE} GROUP BY {_SLICE}
    UNION ALL
    SELECT {_SLICE}, -count(*) FROM consumed c JOIN latest m ON {_MADE_BY} JOIN latest u ON {_INPUT_OF}
    WHERE m.available AND {_READABLE} GROUP BY {_SLICE}
) m GROUP BY {_SLICE} HAVING sum(m.n) > 0
"""
_ADDED_SQL = f"""
SELECT {_SLICE}, min(u.published_at) AS upstream_since
FROM latest m SEMI JOIN grown USING (source, customer_id, query_name, logical_date)
JOIN {_ITS_WINDOWS} AND {{whose}} JOIN latest u ON {_IN_WINDOW} {{same_customer}}
ANTI JOIN consumed c ON {_MADE_BY} AND {_INPUT_OF}
WHERE {_READABLE} GROUP BY {_SLICE}
"""
UPSTREAM_SQL = f"""
WITH grown AS MATERIALIZED ({_GROWN_SQL})
SELECT source, customer_id, query_name, logical_date, min(upstream_since) AS upstream_since FROM (
    {_CHANGED_SQL}
    UNION ALL {_ADDED_SQL.format(whose="NOT w.own", same_customer="")}
    UNION ALL {_ADDED_SQL.format(whose="w.own", same_customer="AND u.customer_id = m.customer_id")}
) GROUP BY source, customer_id, query_name, logical_date
"""

# The newest partition of a customer, and partitions that their source may still change: only those can become fresher.
NEWEST_SQL = """
SELECT source, customer_id, query_name, max(logical_date) AS newest FROM latest
WHERE last_materialization_at IS NOT NULL GROUP BY source, customer_id, query_name
"""


def judged_sql(*, freshness: bool, provenance: bool, withdrawn: bool = False, narrowed: str = "") -> str:
    """The query for the status of each partition that has events: flags, stale reasons, displayed status. Joins that
    have no effect are left out: they are slow on a million rows."""
    late = (
        "epoch_us(s.last_materialization_at) + p.max_lag < now_"
        " AND (s.logical_date > e.over - p.restate_days OR s.logical_date = w.newest)"
        if freshness
        else "false"
    )
    same = "{0}.source = s.source AND {0}.customer_id = s.customer_id AND {0}.query_name = s.query_name"
    newest = f"LEFT JOIN newest w ON {same.format('w')}" if freshness else ""
    overtaken = f"LEFT JOIN overtaken u ON {same.format('u')} AND u.logical_date = s.logical_date" if provenance else ""
    demoted = (
        f"LEFT JOIN withdrawn_inputs d ON {same.format('d')} AND d.logical_date = s.logical_date" if withdrawn else ""
    )
    return f"""
    SELECT n, logical_date, last_failed, late, overtaken, outdated, unpublished, input_demoted, available,
        materialized_version,
        -- the earliest of the reasons, but not before the partition was computed
        CASE WHEN late OR overtaken OR outdated THEN greatest(made_at, least(
            CASE WHEN late THEN made_at + max_lag END, CASE WHEN overtaken THEN overtaken_since END,
            CASE WHEN outdated THEN COALESCE(code_since, now_) END)) END AS stale_since,
        CASE
            WHEN NOT made THEN 'never_materialized'
            WHEN NOT available THEN 'unavailable'
            WHEN last_failed THEN 'materialized_but_last_attempt_failed'
            WHEN late OR overtaken OR outdated THEN 'stale'
            ELSE 'materialized'
        END AS display
    FROM (
        SELECT e.n, s.logical_date, s.last_materialization_at IS NOT NULL AS made, s.materialized_version,
            epoch_us(s.last_materialization_at) AS made_at, p.max_lag, p.code_since, now_,
            COALESCE(s.available, false) AS available,
            COALESCE(s.last_attempt_outcome = 'FAILED'
                AND s.attempt_position > COALESCE(s.materialized_position, 0), false)
                AS last_failed,
            COALESCE({late}, false) AS late,
            -- runs of the first releases have no known version: that is not a change
            COALESCE(s.last_materialization_code_version NOT IN ('', p.code_version)
                AND NOT list_contains(p.same_code, s.last_materialization_code_version), false) AS outdated,
            {"u.logical_date IS NOT NULL" if provenance else "false"} AS overtaken,
            {"d.logical_date IS NOT NULL" if withdrawn else "false"} AS input_demoted,
            COALESCE(s.available AND COALESCE(s.published_run_id, '') <> s.last_materialization_run_id, false)
                AS unpublished,
            {"epoch_us(COALESCE(u.upstream_since, s.last_materialization_at))" if provenance else "NULL"}
                AS overtaken_since
        FROM latest s
        {narrowed}
        JOIN expected e ON e.source = s.source AND e.customer_id = s.customer_id AND e.query_name = s.query_name
            AND s.logical_date BETWEEN e.first AND e.last
        LEFT JOIN policies p ON p.source = e.source AND p.query_name = e.query_name
        {newest}
        {overtaken}
        {demoted}
        CROSS JOIN moment
    )"""

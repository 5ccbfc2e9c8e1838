"""The status board: the status of every expected partition now. Computed from the projections in bulk, without a JVM.

Partitions with events are evaluated once, by the number of their range and their day; partitions without events are
computed from the ranges. Details are read only for the rows of the requested page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb

from penstock.expected import ExpectedRange
from penstock.lifecycle import DisplayStatus
from penstock.partition import PartitionKey, RunId
from penstock.projections.current import Current
from penstock.projections.duckdb_tables import create_table, empty_sql, file_list
from penstock.projections.staleness import (
    EXPECTED,
    NEWEST_SQL,
    POLICIES,
    UPSTREAM_SQL,
    WINDOWS,
    Policy,
    StaleReason,
    expected_rows,
    judged_sql,
    microseconds,
    moment,
    policy_rows,
    window_rows,
)
from penstock.projections.status_columns import COLUMNS, CONSUMED_COLUMNS, KEY, NAMES, join_sql

if TYPE_CHECKING:
    import pyarrow as pa

KeyRows = Sequence[tuple[Any, ...]]  # keys of partitions, as tuples of their four parts

_KEY = "source, customer_id, query_name, logical_date"
_GROUPS = {
    "source": "source",
    "query": "query_name",
    "customer": "customer_id",
    "date": "CAST(logical_date AS VARCHAR)",
    "month": "strftime(logical_date, '%Y-%m')",
}
_BY_DAY = {"date", "month"}
_FLAG_NAMES = {
    "last_failed": "last_attempt_failed",
    "late": "late",
    "overtaken": "upstream_changed",
    "outdated": "code_changed",
    "unpublished": "unpublished",
    "input_demoted": "input_demoted",
}
_REASONS = {
    "late": StaleReason.FRESHNESS_POLICY,
    "overtaken": StaleReason.UPSTREAM_CHANGED,
    "outdated": StaleReason.CODE_CHANGED,
}

STALE = "(late OR overtaken OR outdated) AND available"
FAILED = "(last_failed OR display = 'unavailable')"


class PartitionStanding(NamedTuple):
    """The status of one partition."""

    key: PartitionKey
    display: DisplayStatus
    flags: tuple[str, ...]
    last_attempt_run_id: RunId | None
    last_attempt_at: datetime | None
    last_attempt_outcome: str | None
    last_materialization_run_id: RunId | None
    last_materialization_at: datetime | None
    stale_since: datetime | None
    reasons: tuple[StaleReason, ...]


class Gap(NamedTuple):
    """Consecutive days without an accepted run."""

    source: str
    customer_id: str
    query_name: str
    first: date
    last: date


class Board:
    """The expected partitions at one moment. `only` restricts them to these keys; `without` excludes keys; `withdrawn`
    are the keys of derived partitions with a demoted input run, each with the time of its demotion: they are stale."""

    def __init__(
        self,
        current: Current,
        expected: Sequence[ExpectedRange],
        policies: Sequence[Policy],
        now: datetime,
        *,
        only: KeyRows | None = None,
        without: KeyRows | None = None,
        withdrawn: KeyRows | None = None,
    ) -> None:
        self._duckdb = duckdb.connect(config={"python_enable_replacements": "false"})
        self._duckdb.execute("SET timezone = 'UTC'")
        self._only = only is not None
        self._current = current
        with current.readable():
            self._prepare(current, expected, policies, now, only, without, withdrawn)

    def _prepare(
        self,
        current: Current,
        expected: Sequence[ExpectedRange],
        policies: Sequence[Policy],
        now: datetime,
        only: KeyRows | None,
        without: KeyRows | None,
        withdrawn: KeyRows | None,
    ) -> None:
        """Evaluate each partition that has events once, into the table `judged`."""
        key = {name: COLUMNS[name] for name in KEY}
        create_table(self._duckdb, "expected", EXPECTED, expected_rows(expected))
        create_table(self._duckdb, "policies", POLICIES, policy_rows(policies))
        create_table(self._duckdb, "moment", {"now_": "BIGINT"}, [(microseconds(now),)])
        if only is not None:
            create_table(self._duckdb, "only_keys", key, only)
        if without is not None:
            create_table(self._duckdb, "without_keys", key, without)
        if withdrawn is not None:
            create_table(self._duckdb, "withdrawn_inputs", key | {"demoted_at": "TIMESTAMPTZ"}, withdrawn)
        self._open_files(current)
        provenance = self._consumed(current, _asked_for(policies, expected), withdrawn is not None)
        freshness = any(policy.max_lag for policy in policies)
        if freshness:
            self._duckdb.execute(f"CREATE TEMP TABLE newest AS {NEWEST_SQL}")
        narrowed = f"SEMI JOIN only_keys USING ({_KEY})" if only is not None else ""
        narrowed += f" ANTI JOIN without_keys USING ({_KEY})" if without is not None else ""
        self._duckdb.execute(
            "CREATE TEMP TABLE judged AS "
            + judged_sql(freshness=freshness, provenance=provenance, withdrawn=withdrawn is not None, narrowed=narrowed)
        )

    def _open_files(self, current: Current) -> None:
        """Create the view of the latest status rows (the base, joined with newer rows where there are any), and that of
        input runs. DuckDB reads the files itself if it can open them."""
        names, base = ", ".join(NAMES), current.manifest.status_base
        paths = current.files_by_path()
        self._inputs: list[str] = []  # queries of input runs
        if paths is not None:
            self._duckdb.execute(f"SET allowed_paths = {file_list(list(paths.values()))}")
        self._duckdb.execute("SET enable_external_access = false")
        if paths is not None:
            has_news = self._read_files(current, paths)
        else:
            self._register_arrow(current)
            has_news = bool(self._rows("SELECT 1 FROM news LIMIT 1"))
        if base is None:
            latest = f"SELECT {names} FROM news" if has_news else empty_sql(COLUMNS)
        elif has_news:
            touched = f"(SELECT {names} FROM base SEMI JOIN news USING ({_KEY}) UNION ALL SELECT {names} FROM news)"
            latest = f"SELECT {names} FROM base ANTI JOIN news USING ({_KEY})"
            latest += f" UNION ALL SELECT {names} FROM ({join_sql(touched)})"
        else:
            latest = f"SELECT {names} FROM base"
        self._duckdb.execute(f"CREATE TEMP VIEW latest AS {latest}")

    def _read_files(self, current: Current, paths: Mapping[str, str]) -> bool:
        """Create the view of the base and the table of newer rows, from files and from newer events. False if no row is
        newer than the base."""
        names, base = ", ".join(NAMES), current.manifest.status_base
        if base is not None:
            files = file_list([paths[base]])
            self._duckdb.execute(f"CREATE TEMP VIEW base AS SELECT {names} FROM read_parquet({files})")
        newer = []
        if deltas := [paths[path] for path in current.manifest.status_deltas]:
            newer.append(f"SELECT {names} FROM read_parquet({file_list(deltas)})")
        if (rows := current.event_rows()) is not None:
            self._duckdb.register("event_rows", rows)
            newer.append(f"SELECT {names} FROM event_rows")
        if newer:
            self._duckdb.execute(f"CREATE TEMP TABLE news AS {join_sql(f'({_union(newer)})')}")
        if consumed := [paths[path] for path in current.manifest.consumed]:
            self._inputs.append(f"SELECT {', '.join(CONSUMED_COLUMNS)} FROM read_parquet({file_list(consumed)})")
        if (inputs := current.event_inputs()) is not None:
            self._duckdb.register("event_inputs", inputs)
            self._inputs.append(f"SELECT {', '.join(CONSUMED_COLUMNS)} FROM event_inputs")
        return bool(newer)

    def _register_arrow(self, current: Current) -> None:
        """Register the rows of the base, newer rows and input runs as Arrow tables."""
        self._duckdb.register("news", current.status_news())
        if (base := current.status_base()) is not None:
            self._duckdb.register("base", base)
        for number, table in enumerate(current.consumed()):
            self._duckdb.register(f"consumed_{number}", table)
            self._inputs.append(f"SELECT * FROM consumed_{number}")

    def _consumed(self, current: Current, policies: Sequence[Policy], withdrawn: bool) -> bool:
        """Create the tables of derived partitions with changed or demoted inputs. False if there are no inputs."""
        if not self._inputs and not withdrawn and not any(policy.windows for policy in policies):
            return False
        # after a recovery the input runs are unknown
        union = _union(self._inputs or [empty_sql(CONSUMED_COLUMNS)])
        create_table(self._duckdb, "windows", WINDOWS, window_rows(policies))
        self._duckdb.execute(f"CREATE TEMP VIEW consumed AS {union}")
        overtaken = UPSTREAM_SQL
        if withdrawn:
            overtaken = (
                f"SELECT {_KEY}, min(upstream_since) AS upstream_since FROM (SELECT * FROM ({UPSTREAM_SQL})"
                f" UNION ALL SELECT {_KEY}, demoted_at FROM withdrawn_inputs) GROUP BY {_KEY}"
            )
        self._duckdb.execute(f"CREATE TEMP TABLE overtaken AS {overtaken}")
        return True

    # --- counts -----------------------------------------------------------------------------------------------------

    def counts(self, groups: Sequence[str]) -> list[dict[str, Any]]:
        """Count the partitions by group and displayed status."""
        names = _group_columns(groups)
        keys = "".join(f"g{number}, " for number in range(len(groups)))
        shown = self._rows(
            f"SELECT {names} display, count(*) FROM judged JOIN expected USING (n)"
            f" WHERE display <> 'never_materialized' GROUP BY {keys} display"
        )
        universe = self._grouped(groups)
        count = "CAST(sum(last - first + 1) AS BIGINT)" if universe == "expected" else "count(*)"
        by = f"GROUP BY {keys[:-2]}" if keys else ""
        expected = self._rows(f"SELECT {names} {count} FROM {universe} {by}")
        found = {row[:-1]: row[-1] for row in shown}
        there: dict[tuple[Any, ...], int] = {}
        for key, number in found.items():
            there[key[:-1]] = there.get(key[:-1], 0) + number
        for *group, total in expected:
            missing = (total or 0) - there.get(tuple(group), 0)
            if missing:
                found[(*group, str(DisplayStatus.NEVER_MATERIALIZED))] = missing
        return [
            {**dict(zip(groups, key[:-1], strict=True)), "display": key[-1], "n": number}
            for key, number in sorted(found.items())
        ]

    def group_count(self, groups: Sequence[str]) -> int:
        """Count the groups of `counts`, without loading them into Python."""
        if not groups:
            return 1
        names = _group_columns(groups).removesuffix(", ")
        [row] = self._rows(f"SELECT count(*) FROM (SELECT DISTINCT {names} FROM {self._grouped(groups)})")
        return int(row[0])

    def flags(self) -> dict[str, int]:
        """Count the partitions by flag, independent of their displayed status."""
        sums = ", ".join(f"count(*) FILTER ({flag})" for flag in _FLAG_NAMES)
        [row] = self._rows(f"SELECT {sums} FROM judged")
        return {name: number for name, number in zip(_FLAG_NAMES.values(), row, strict=True) if number}

    def next_deadline(self) -> int | None:
        """Return the first moment from now on, in microseconds, after which another partition is late; None if none
        becomes late by itself."""
        [row] = self._rows(
            "SELECT min(deadline) FROM (SELECT epoch_us(last_materialization_at) + max_lag AS deadline"
            " FROM latest JOIN policies USING (source, query_name)) CROSS JOIN moment WHERE deadline >= now_"
        )
        return None if row[0] is None else int(row[0])

    def total(self, condition: str) -> int:
        """Count the partitions with events that match a condition."""
        [row] = self._rows(f"SELECT count(*) FROM judged WHERE {condition}")
        return int(row[0])

    def missing(self) -> int:
        """Count the partitions that were never materialized."""
        [expected] = self._rows(
            f"SELECT count(*) FROM ({self._universe()})"
            if self._only
            else "SELECT COALESCE(CAST(sum(last - first + 1) AS BIGINT), 0) FROM expected"
        )
        return int(expected[0]) - self.total("display <> 'never_materialized'")

    def stale_reasons(self) -> dict[str, int]:
        """Count the stale partitions by reason; one partition may have several."""
        sums = ", ".join(f"count(*) FILTER ({flag})" for flag in _REASONS)
        [row] = self._rows(f"SELECT {sums} FROM judged WHERE {STALE}")
        return {str(reason): number for reason, number in zip(_REASONS.values(), row, strict=True)}

    def stale_by_asset(self) -> list[tuple[str, str, StaleReason, int]]:
        """Count the stale partitions by source, query and reason; one partition may have several reasons."""
        sums = ", ".join(f"count(*) FILTER ({flag})" for flag in _REASONS)
        rows = self._rows(
            f"SELECT source, query_name, {sums} FROM judged JOIN expected USING (n) WHERE {STALE}"
            " GROUP BY 1, 2 ORDER BY 1, 2"
        )
        return [
            (source, query_name, reason, count)
            for source, query_name, *counts in rows
            for reason, count in zip(_REASONS.values(), counts, strict=True)
        ]

    def first_unattempted(self, without: Sequence[ExpectedRange] = ()) -> list[tuple[str, str, str, date]]:
        """Return source, customer, query and the first day of each expected range that has days without data and
        without a failed attempt. The days of `without` are left out."""
        settled = "SELECT n, logical_date FROM judged WHERE display <> 'never_materialized' OR last_failed"
        if without:
            create_table(self._duckdb, "left_out", EXPECTED, expected_rows(without))
            settled += (
                " UNION SELECT e.n, o.first + CAST(unnest(range(o.last - o.first + 1)) AS INTEGER) FROM left_out o"
                " JOIN expected e ON e.source = o.source AND e.customer_id = o.customer_id"
                " AND e.query_name = o.query_name AND o.first BETWEEN e.first AND e.last"
            )
        # The settled days of a range before its first gap are numbered without a jump.
        rows = self._rows(f"""
            WITH numbered AS (
                SELECT n, logical_date, row_number() OVER (PARTITION BY n ORDER BY logical_date) - 1 AS number
                FROM ({settled})
            ), before_gap AS (
                SELECT n, count(*) AS days FROM numbered JOIN expected USING (n)
                WHERE logical_date - first = number GROUP BY n
            )
            SELECT source, customer_id, query_name, first + CAST(COALESCE(days, 0) AS INTEGER) AS day
            FROM expected LEFT JOIN before_gap USING (n) WHERE COALESCE(days, 0) <= last - first""")
        return [(source, customer_id, query_name, day) for source, customer_id, query_name, day in rows]

    # --- pages --------------------------------------------------------------------------------------------------------

    def page(self, condition: str, *, after: PartitionKey | None, limit: int | None) -> list[PartitionStanding]:
        """Return the partitions with events that match a condition, by key."""
        return self._page(f"SELECT n, logical_date FROM judged WHERE {condition}", after, limit)

    def missing_page(self, *, after: PartitionKey | None, limit: int | None) -> list[PartitionStanding]:
        """Return the partitions that were never materialized, by key."""
        gone = "SELECT n, logical_date FROM judged WHERE display <> 'never_materialized'"
        return self._page(f"SELECT * FROM ({self._universe()}) EXCEPT ALL {gone}", after, limit)

    def everything(self) -> list[PartitionStanding]:
        return self._page(self._universe(), None, None)

    def gaps(self, limit: int) -> tuple[list[Gap], int]:
        """Return missing partitions as ranges of days, and the number of ranges."""
        if self._only:
            return self._islands(limit)
        # A gap lies between two present days; the day before and after the range count as present.
        there = """
            SELECT n, logical_date FROM judged WHERE display <> 'never_materialized'
            UNION ALL SELECT n, first - 1 FROM expected UNION ALL SELECT n, last + 1 FROM expected"""
        between = f"""
            SELECT n, logical_date + 1 AS first, next - 1 AS last FROM (
                SELECT n, logical_date, lead(logical_date) OVER (PARTITION BY n ORDER BY logical_date) AS next
                FROM ({there})
            ) WHERE next > logical_date + 1"""
        return self._gaps(between, limit)

    def swept(self) -> pa.Table:
        """Return every stale partition with time and reasons, to be written to a file."""
        reason = " ".join(f"WHEN {flag} THEN '{reason}'" for flag, reason in _REASONS.items())
        return self._duckdb.sql(
            f"SELECT {_KEY}, materialized_version, make_timestamptz(stale_since) AS stale_since, CASE {reason} END"
            " AS stale_reason_code FROM judged JOIN expected USING (n) WHERE " + STALE
        ).to_arrow_table()

    def expected(self) -> list[ExpectedRange]:
        """Return the expected ranges in the order of their numbers, which is the order of keys."""
        rows = self._rows("SELECT source, customer_id, query_name, first, last FROM expected ORDER BY n")
        return [ExpectedRange(*row) for row in rows]

    def codes(self, codes: Mapping[str, int], failed: int) -> dict[str, Any]:
        """Return, as NumPy arrays, the number of its range (`n`), the day in the range (`day`) and the code of the
        status (`code`) of each partition with events. `failed` is the code of a partition that was never materialized
        and whose last attempt failed."""
        cases = " ".join(f"WHEN display = '{display}' THEN {int(code)}" for display, code in codes.items())
        return self._duckdb.execute(
            "SELECT n, CAST(logical_date - first AS INTEGER) AS day, CAST(CASE WHEN display = 'never_materialized' AND"
            f" last_failed THEN {int(failed)} {cases} END AS UTINYINT) AS code FROM judged JOIN expected USING (n)"
        ).fetchnumpy()

    # --- internals ----------------------------------------------------------------------------------------------------

    def _grouped(self, groups: Sequence[str]) -> str:
        """The rows that groups are formed from: expected ranges, or partitions if a group depends on the day."""
        if self._only or _BY_DAY & set(groups):
            return f"({self._universe()}) JOIN expected USING (n)"
        return "expected"

    def _universe(self) -> str:
        """Every expected partition as the number of its range and a day."""
        if self._only:
            return (
                "SELECT e.n, k.logical_date FROM only_keys k JOIN expected e ON e.source = k.source"
                " AND e.customer_id = k.customer_id AND e.query_name = k.query_name"
                " AND k.logical_date BETWEEN e.first AND e.last"
            )
        return "SELECT n, first + CAST(unnest(range(last - first + 1)) AS INTEGER) AS logical_date FROM expected"

    def _islands(self, limit: int) -> tuple[list[Gap], int]:
        gone = "SELECT n, logical_date FROM judged WHERE display <> 'never_materialized'"
        islands = f"""
            SELECT n, min(logical_date) AS first, max(logical_date) AS last FROM (
                SELECT n, logical_date, logical_date - CAST(
                    row_number() OVER (PARTITION BY n ORDER BY logical_date) AS INTEGER) AS island
                FROM (SELECT * FROM ({self._universe()}) EXCEPT ALL {gone})
            ) GROUP BY n, island"""
        return self._gaps(islands, limit)

    def _gaps(self, found: str, limit: int) -> tuple[list[Gap], int]:
        rows = self._rows(
            "SELECT e.source, e.customer_id, e.query_name, g.first, g.last, count(*) OVER ()"
            f" FROM ({found}) g JOIN expected e USING (n) ORDER BY e.source, e.query_name, e.customer_id, g.first"
            f" LIMIT {int(limit)}"
        )
        return [Gap(*row[:5]) for row in rows], (rows[0][5] if rows else 0)

    def _page(self, chosen: str, after: PartitionKey | None, limit: int | None) -> list[PartitionStanding]:
        with self._current.readable():
            return self._standings(chosen, after, limit)

    def _standings(self, chosen: str, after: PartitionKey | None, limit: int | None) -> list[PartitionStanding]:
        beyond, values = "", []
        if after is not None:
            beyond = f"WHERE ({_KEY}) > (?, ?, ?, ?)"
            values = [*after]
        self._duckdb.execute(
            f"CREATE OR REPLACE TEMP TABLE page AS SELECT n, {_KEY} FROM ({chosen}) JOIN expected USING (n) {beyond}"
            f" ORDER BY n, logical_date" + ("" if limit is None else f" LIMIT {int(limit)}"),
            values,
        )
        details = ("last_attempt_run_id", "last_attempt_at", "last_attempt_outcome", "last_materialization_run_id",
                   "last_materialization_at")  # fmt: skip
        flags = ", ".join(f"COALESCE(j.{flag}, false) AS {flag}" for flag in _FLAG_NAMES)
        found = self._duckdb.execute(
            f"SELECT {', '.join(f'p.{name}' for name in _KEY.split(', '))}, {flags}, j.stale_since,"
            f" COALESCE(j.display, 'never_materialized') AS display, {', '.join(f's.{name}' for name in details)}"
            f" FROM page p LEFT JOIN judged j ON j.n = p.n AND j.logical_date = p.logical_date"
            f" LEFT JOIN ({self._details()}) s ON s.source = p.source AND s.customer_id = p.customer_id"
            " AND s.query_name = p.query_name AND s.logical_date = p.logical_date ORDER BY p.n, p.logical_date"
        )
        names = [column[0] for column in found.description]
        return [_standing(dict(zip(names, row, strict=True))) for row in found.fetchall()]

    def _details(self) -> str:
        """The status rows of the partitions of the page. Their customers and days are passed to the scan, so that it
        skips other row groups."""
        [bounds] = self._rows(
            "SELECT min(customer_id), max(customer_id), min(logical_date), max(logical_date) FROM page"
        )
        if bounds[0] is None:
            return "SELECT * FROM latest WHERE false"
        first, last, begin, end = bounds
        return (
            f"SELECT * FROM latest WHERE customer_id BETWEEN '{first}' AND '{last}'"
            f" AND logical_date BETWEEN DATE '{begin}' AND DATE '{end}'"
        )

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self._duckdb.execute(statement).fetchall()


def _union(queries: Sequence[str]) -> str:
    return " UNION ALL ".join(queries)


def _group_columns(groups: Sequence[str]) -> str:
    return "".join(f"{_GROUPS[group]} AS g{number}, " for number, group in enumerate(groups))


def _asked_for(policies: Sequence[Policy], expected: Sequence[ExpectedRange]) -> list[Policy]:
    assets = {(span.source, span.query_name) for span in expected}
    return [policy for policy in policies if (policy.source, policy.query_name) in assets]


def _standing(row: dict[str, Any]) -> PartitionStanding:
    return PartitionStanding(
        PartitionKey(row["source"], row["customer_id"], row["query_name"], row["logical_date"]),
        DisplayStatus(row["display"]),
        tuple(name for flag, name in _FLAG_NAMES.items() if row[flag]),
        row["last_attempt_run_id"],
        row["last_attempt_at"],
        row["last_attempt_outcome"],
        row["last_materialization_run_id"],
        row["last_materialization_at"],
        moment(row["stale_since"]),
        tuple(reason for flag, reason in _REASONS.items() if row[flag]),
    )

"""The board: how every expected partition stands now. Answered from the projections, in bulk, without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from penstock.lifecycle import DisplayStatus
from penstock.partition import PartitionKey, RunId
from penstock.projections.consumed import CONSUMED
from penstock.projections.current import Current
from penstock.projections.staleness import (
    JUDGED_SQL,
    NEWEST_SQL,
    UPSTREAM_SQL,
    Expected,
    Policy,
    StaleReason,
    expected_table,
    policy_table,
)
from penstock.projections.status import PARTIAL, join_sql

_KEY = "source, customer_id, query_name, logical_date"
_GROUPS = {
    "source": "source",
    "query": "query_name",
    "customer": "customer_id",
    "date": "CAST(logical_date AS VARCHAR)",
    "month": "strftime(logical_date, '%Y-%m')",
}
_FLAGS = ("last_failed", "late", "overtaken", "outdated", "unpublished")


class Standing(NamedTuple):
    """How one partition stands."""

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
    """Days without a gap between them that no run was ever accepted for."""

    source: str
    customer_id: str
    query_name: str
    first: date
    last: date


class Board:
    """One look at the expected partitions. `only` narrows it to these keys, `without` leaves keys out."""

    def __init__(
        self,
        current: Current,
        expected: Sequence[Expected],
        policies: Sequence[Policy],
        now: datetime,
        *,
        only: pa.Table | None = None,
        without: pa.Table | None = None,
    ) -> None:
        self._duckdb = duckdb.connect(config={"enable_external_access": "false", "python_enable_replacements": "false"})
        self._duckdb.execute("SET timezone = 'UTC'")
        tables = {
            "news": current.status_news(),
            "expected": expected_table(expected),
            "policies": policy_table(policies),
            "moment": pa.table({"now_": pa.array([now], pa.timestamp("us", tz="UTC"))}),
        }
        base = current.status_base()
        tables["base"] = PARTIAL.empty_table() if base is None else base
        for name, table in tables.items():
            self._duckdb.register(name, table)
        self._views(current, freshness=any(policy.max_lag for policy in policies))
        self._filter = self._narrowed(only, without)

    def _views(self, current: Current, *, freshness: bool) -> None:
        consumed = current.consumed()
        for number, table in enumerate(consumed):
            self._duckdb.register(f"consumed_{number}", table)
        parts = " UNION ALL ".join(f"SELECT * FROM consumed_{number}" for number in range(len(consumed)))
        if not consumed:
            self._duckdb.register("consumed_none", CONSUMED.empty_table())
        nothing = "SELECT source, customer_id, query_name, CAST(NULL AS DATE) AS newest FROM expected WHERE false"
        names = ", ".join(PARTIAL.names)
        views = {
            "said": f"""
                SELECT {names} FROM base ANTI JOIN news USING ({_KEY})
                UNION ALL SELECT {names} FROM ({
                join_sql(f"(SELECT {names} FROM base SEMI JOIN news USING ({_KEY}) UNION ALL SELECT {names} FROM news)")
            })""",
            "consumed": parts or "SELECT * FROM consumed_none",
            "overtaken": UPSTREAM_SQL,
            "newest": NEWEST_SQL if freshness else nothing,
            "judged": JUDGED_SQL,
            "days": """
                SELECT source, customer_id, query_name,
                    CAST(unnest(generate_series(CAST(first AS TIMESTAMP), CAST(last AS TIMESTAMP), INTERVAL 1 DAY))
                        AS DATE) AS logical_date
                FROM expected""",
            "standing": f"""
                SELECT d.source, d.customer_id, d.query_name, d.logical_date,
                    j.* EXCLUDE ({_KEY}, display), COALESCE(j.display, 'never_materialized') AS display
                FROM days d LEFT JOIN judged j USING ({_KEY})""",
        }
        for name, statement in views.items():
            self._duckdb.execute(f"CREATE TEMP VIEW {name} AS {statement}")

    def _narrowed(self, only: pa.Table | None, without: pa.Table | None) -> str:
        parts = ""
        for name, kind, table in (("only", "SEMI", only), ("without", "ANTI", without)):
            if table is not None:
                self._duckdb.register(f"{name}_keys", table)
                parts += f" {kind} JOIN {name}_keys USING ({_KEY})"
        return parts

    # --- questions --------------------------------------------------------------------------------------------------

    def counts(self, groups: Sequence[str]) -> list[dict[str, Any]]:
        """How many partitions show which status, in each group."""
        names = [f"{_GROUPS[group]} AS {group}_" for group in groups]
        keys = ", ".join(["display", *(f"{group}_" for group in groups)])
        rows = self._duckdb.execute(
            f"SELECT {', '.join([*names, 'display', 'count(*)'])} FROM standing {self._filter}"
            f" GROUP BY {keys} ORDER BY {', '.join([*(f'{group}_' for group in groups), 'display'])}"
        ).fetchall()
        return [{**dict(zip(groups, row, strict=False)), "display": row[-2], "n": row[-1]} for row in rows]

    def flags(self) -> dict[str, int]:
        """How many partitions carry which flag, whatever else they show."""
        sums = ", ".join(f"COALESCE(sum(CAST({flag} AS INTEGER)), 0)" for flag in _FLAGS)
        [row] = self._duckdb.execute(f"SELECT {sums} FROM judged {self._filter}").fetchall()
        return {_FLAG_NAMES[flag]: int(number) for flag, number in zip(_FLAGS, row, strict=True) if number}

    def total(self, condition: str) -> int:
        [row] = self._duckdb.execute(f"SELECT count(*) FROM standing {self._filter} WHERE {condition}").fetchall()
        return int(row[0])

    def page(self, condition: str, *, after: PartitionKey | None, limit: int | None) -> list[Standing]:
        """Partitions that meet a condition, by key."""
        beyond, values = "", []
        if after is not None:
            beyond = f" AND ({_KEY}) > (?, ?, ?, ?)"
            values = [*after]
        rows = self._duckdb.execute(
            f"SELECT * FROM standing {self._filter} WHERE {condition}{beyond} ORDER BY {_KEY}"
            + ("" if limit is None else f" LIMIT {int(limit)}"),
            values,
        )
        names = [column[0] for column in rows.description]
        return [_standing(dict(zip(names, row, strict=True))) for row in rows.fetchall()]

    def gaps(self, limit: int) -> tuple[list[Gap], int]:
        """What is missing as ranges of days, and how many ranges there are."""
        missing = f"SELECT {_KEY} FROM standing {self._filter} WHERE {MISSING}"
        islands = f"""
            SELECT source, customer_id, query_name, min(logical_date) AS first, max(logical_date) AS last
            FROM (SELECT {_KEY}, logical_date - CAST(row_number() OVER (
                PARTITION BY source, customer_id, query_name ORDER BY logical_date) AS INTEGER) AS island
                FROM ({missing}))
            GROUP BY source, customer_id, query_name, island"""
        found = self._duckdb.execute(
            f"SELECT *, count(*) OVER () FROM ({islands}) ORDER BY source, query_name, customer_id, first"
            f" LIMIT {int(limit)}"
        ).fetchall()
        return [Gap(*row[:5]) for row in found], (found[0][5] if found else 0)

    def stale_reasons(self) -> dict[str, int]:
        """How many partitions are stale for which reason; one may have several."""
        [row] = self._duckdb.execute(
            f"SELECT count(*) FILTER (late), count(*) FILTER (overtaken), count(*) FILTER (outdated)"
            f" FROM judged {self._filter} WHERE {STALE}"
        ).fetchall()
        return {str(reason): number for reason, number in zip(StaleReason, row, strict=True)}

    def swept(self) -> pa.Table:
        """Every partition that is stale now, with since when and why, for those who want it written down."""
        return self._duckdb.sql(
            f"SELECT {_KEY}, materialized_version, stale_since, stale_reason_code FROM judged"
            " WHERE stale_reason_code IS NOT NULL"
        ).to_arrow_table()


MISSING = "display = 'never_materialized'"
STALE = "(late OR overtaken OR outdated) AND available"
FAILED = "(last_failed OR display = 'unavailable')"

_FLAG_NAMES = {
    "last_failed": "last_attempt_failed",
    "late": "late",
    "overtaken": "upstream_changed",
    "outdated": "code_changed",
    "unpublished": "unpublished",
}
_REASONS = {
    "late": StaleReason.FRESHNESS_POLICY,
    "overtaken": StaleReason.UPSTREAM_CHANGED,
    "outdated": StaleReason.CODE_CHANGED,
}


def _standing(row: dict[str, Any]) -> Standing:
    return Standing(
        PartitionKey(row["source"], row["customer_id"], row["query_name"], row["logical_date"]),
        DisplayStatus(row["display"]),
        tuple(name for flag, name in _FLAG_NAMES.items() if row[flag]),
        row["last_attempt_run_id"],
        row["last_attempt_at"],
        row["last_attempt_outcome"],
        row["last_materialization_run_id"],
        row["last_materialization_at"],
        row["stale_since"],
        tuple(reason for flag, reason in _REASONS.items() if row[flag]),
    )

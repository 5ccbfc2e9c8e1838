"""The columns of `partition_status` and the statement that joins its rows. Importing this module loads no Arrow."""

from __future__ import annotations

# For each group: the version first, then its columns.
GROUPS: dict[str, tuple[str, ...]] = {
    "attempt_no": ("last_attempt_run_id", "last_attempt_at", "last_attempt_outcome", "attempt_position"),
    "authority_version": ("available", "authority_at"),
    "materialized_version": (
        "last_materialization_run_id",
        "last_materialization_at",
        "last_materialization_code_version",
        "content_digest",
        "materialized_position",
    ),
    "published_version": ("published_run_id", "published_at"),
    "row_position": ("row_version",),
}

KEY = ("source", "customer_id", "query_name", "logical_date")
# Sorted by asset first: a query for one asset, a few customers or a range of days reads few row groups.
ORDER = "source, query_name, customer_id, logical_date"

_TYPES = {
    "logical_date": "DATE",
    "attempt_no": "INTEGER",
    "attempt_position": "BIGINT",
    "authority_version": "INTEGER",
    "available": "BOOLEAN",
    "materialized_version": "INTEGER",
    "materialized_position": "BIGINT",
    "published_version": "BIGINT",
    "row_position": "BIGINT",
    **dict.fromkeys(("last_attempt_at", "authority_at", "last_materialization_at", "published_at"), "TIMESTAMPTZ"),
}
NAMES = (*KEY, *(name for version, values in GROUPS.items() for name in (version, *values)))
COLUMNS = {name: _TYPES.get(name, "VARCHAR") for name in NAMES}

CONSUMED_COLUMNS = {
    **{name: COLUMNS[name] for name in KEY},
    "run_id": "VARCHAR",
    **{f"input_{name}": COLUMNS[name] for name in KEY},
    "input_run_id": "VARCHAR",
    "input_content_digest": "VARCHAR",
}


def join_sql(rows: str) -> str:
    """The statement that joins rows of the same partition. Valid in DuckDB and Spark."""
    columns = []
    for version, values in GROUPS.items():
        columns.append(f"max({version}) AS {version}")
        columns += [f"max_by({value}, {version}) AS {value}" for value in values]
    key = ", ".join(KEY)
    return f"SELECT {key}, {', '.join(columns)} FROM {rows} GROUP BY {key}"

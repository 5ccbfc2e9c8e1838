"""Reading trusted rows, compared with Spark and DuckDB on the same packed files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import duckdb

from bench.measure import timed
from bench.workload import ASSET
from penstock.app import Workspace

_TURNS = 15
_SUMS = "sum(clicks), sum(impressions), sum(cost_micros), sum(conversions)"


def measure_scanning(workspace: Workspace, spark: Any, customer: str) -> Iterator[dict[str, object]]:
    """A sum over everything, and all rows of one customer."""
    files = [
        workspace.context.lake.uri(path) for share in workspace.data.vouched(ASSET).scan_tasks() for path in share.files
    ]
    one = f"customer_id = '{customer}'"
    sums = [part.strip() for part in _SUMS.split(",")]

    def spark_plain() -> Any:
        return spark.read.parquet(*files)

    def spark_ours(*customers: str) -> Any:
        return workspace.data.vouched(ASSET, customers=customers).spark(spark)

    def duck_plain(where: str) -> Any:
        statement = f"SELECT {_SUMS} FROM read_parquet({files!r}) WHERE {where}"  # noqa: S608 - constants and our files
        return duckdb.connect().execute(statement).fetchall()

    def duck_ours(*customers: str) -> Any:
        return workspace.data.vouched(ASSET, customers=customers).duckdb().aggregate(_SUMS).fetchall()

    yield _pair(
        "scan, Spark",
        lambda: spark_ours().selectExpr(*sums).collect(),
        lambda: spark_plain().selectExpr(*sums).collect(),
    )
    yield _pair(
        "one customer, Spark",
        lambda: spark_ours(customer).selectExpr(*sums).collect(),
        lambda: spark_plain().where(one).selectExpr(*sums).collect(),
    )
    yield _pair("scan, DuckDB", lambda: duck_ours(), lambda: duck_plain("true"))
    yield _pair("one customer, DuckDB", lambda: duck_ours(customer), lambda: duck_plain(one))


def _pair(what: str, ours: Callable[[], Any], plain: Callable[[], Any]) -> dict[str, object]:
    """Alternate the sides, so that a slow machine slows both; neither pays for the first access to the files."""
    mine, theirs = ours(), plain()
    if [tuple(row)[:3] for row in mine] != [tuple(row)[:3] for row in theirs]:
        raise SystemExit(f"{what}: the sides do not find the same: {mine}, {theirs}")
    times = [(timed(ours), timed(plain)) for _ in range(_TURNS)]
    seconds = {name: median(side) for name, side in zip(("penstock", "plain"), zip(*times, strict=True), strict=True)}
    ratio = round(seconds["penstock"] / seconds["plain"], 2)
    return {"what": what, "seconds": {name: round(value, 3) for name, value in seconds.items()}, "in plain": ratio}

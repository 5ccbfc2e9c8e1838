"""Measures fetching and sealing of each kind of source, compared with the simplest reader of the same bytes."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.feeds import CUSTOMER, Feed, dates_of, feeds
from bench.options import positive
from bench.report import circumstances
from penstock.config.settings import SourceSettings
from penstock.partition import new_run_id
from penstock.pipeline.extract import extract_locally
from penstock.pipeline.source_requests import Extraction
from penstock.source.protocol import RunContext
from penstock.source.registry import make_source


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        with feeds(folder, options.days, options.rows) as known:
            measured = [_measured(feed, folder / "lake", options) for feed in known]
    finally:
        shutil.rmtree(folder)
    _show(Console(stderr=True), measured)
    circumstance = circumstances()
    for fact in measured:
        sys.stdout.buffer.write(orjson.dumps(fact | circumstance, option=orjson.OPT_APPEND_NEWLINE))


def _measured(feed: Feed, lake: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of processor time. Both sides must have seen every row, or their times mean nothing."""
    expected = options.days * options.rows
    ours, plain = [], []
    for _ in range(options.repeat):
        counts: list[int] = []
        started = process_time()
        counts += _fetched(feed, lake, options.days)
        between = process_time()
        counts.append(feed.plain())
        ours.append(between - started)
        plain.append(process_time() - between)
        if counts[-1] != expected or sum(counts[:-1]) != expected:
            raise SystemExit(f"{feed.name}: {expected:,} rows were delivered, but {counts} were read")
    return {"source": feed.name, "rows": expected, "seconds": median(ours), "plain_seconds": median(plain)}


def _fetched(feed: Feed, lake: Path, days: int) -> Iterator[int]:
    """One span, as a worker fetches it: sealed, with digests."""
    settings = SourceSettings(name="bench", kind=feed.kind, options=dict(feed.options))
    name = feed.query.name
    extraction = Extraction(str(lake), new_run_id(), settings, {name: feed.query}, {name: "bench"})
    source = make_source(settings, RunContext(extraction.run_id))
    for found in extract_locally(extraction, source, feed.query, CUSTOMER, dates_of(days)):
        if not found.ok:
            raise SystemExit(f"{feed.name}: {found.error_message}")
        yield found.record_count or 0


def _show(console: Console, measured: Sequence[dict[str, Any]]) -> None:
    table = Table(
        title=f"{measured[0]['rows']:,} rows of one customer, rows per second of processor time", title_justify="left"
    )
    table.add_column("source")
    for name in ("fetched and sealed", "plainly read", "times as long"):
        table.add_column(name, justify="right")
    for fact in measured:
        rates = (f"{fact['rows'] / fact[name]:,.0f}" for name in ("seconds", "plain_seconds"))
        table.add_row(fact["source"], *rates, f"{fact['seconds'] / fact['plain_seconds']:.1f}")
    console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.sources", description=__doc__)
    parser.add_argument("--days", type=positive, default=31, metavar="N", help="days of the span (31)")
    parser.add_argument("--rows", type=positive, default=5_000, metavar="R", help="rows of each day (5000)")
    parser.add_argument("--repeat", type=positive, default=3, metavar="K", help="medians of K runs (3)")
    return parser


if __name__ == "__main__":
    main()

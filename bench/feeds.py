"""The same rows in the format of every kind of source, and the simplest reader of each in Python."""

from __future__ import annotations

import csv
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import orjson
import pyarrow as pa
import pyarrow.parquet

from bench.workload import CONTRACT, FIRST_DAY
from penstock.config.assets import Query
from penstock.config.settings import Customer
from penstock.partition import new_run_id
from penstock.source.demo import DemoSource
from penstock.source.protocol import COMPLETE, RunContext

CUSTOMER = Customer(id="1000000001")
_SELECT = (
    "SELECT day AS logical_date, campaign_id, campaign_name, impressions, clicks, cost_micros, conversions FROM rows"
    " WHERE day BETWEEN :first_date AND :last_date"
)


@dataclass(frozen=True, slots=True)
class Feed:
    """One kind of source with its options; `plain` counts the rows that a short script reads from the same bytes."""

    name: str
    kind: str
    options: Mapping[str, Any]
    query: Query
    plain: Callable[[], int]


def query(**options: Any) -> Query:
    return Query.model_validate({**CONTRACT, "name": "campaign_daily", "checks": [], "options": options})


@contextmanager
def feeds(folder: Path, days: int, rows: int) -> Iterator[list[Feed]]:
    """Write all feeds into the folder, and serve it over HTTP inside the block."""
    dates = dates_of(days)
    _deliver(folder, {day: _made(day, rows) for day in dates})
    with _served(folder) as url:
        by_day = {"url": f"{url}/{{date}}.json", "records": "items"}
        by_span = {"url": f"{url}/all.json?{{first_date}}&{{last_date}}", "records": "items", "date_field": "day"}
        yield [
            Feed("demo", "demo", {"rows": rows}, query(), lambda: sum(len(_made(day, rows)) for day in dates)),
            _files(folder, "jsonl", dates, _read_json_lines),
            _files(folder, "csv", dates, _read_csv),
            _files(folder, "parquet", dates, _read_parquet),
            Feed("sql", "sql", {"url": f"sqlite:///{folder}/rows.db"}, query(sql=_SELECT), lambda: _sql(folder, dates)),
            Feed("http, by day", "http", by_day, query(), lambda: sum(_http(f"{url}/{day}.json") for day in dates)),
            Feed("http, by span", "http", by_span, query(), lambda: _http(f"{url}/all.json")),
        ]


def dates_of(days: int) -> list[date]:
    return [FIRST_DAY + timedelta(days=number) for number in range(days)]


def _made(day: date, rows: int) -> list[Any]:
    source = DemoSource({"rows": rows}, RunContext(new_run_id()))
    return [row for _, row in source.extract(query(), CUSTOMER, [day]) if row is not COMPLETE]


def _deliver(folder: Path, made: Mapping[date, Sequence[dict[str, Any]]]) -> None:
    database = sqlite3.connect(folder / "rows.db")
    names = [field.name for field in query().fields]
    database.execute(
        "CREATE TABLE rows (day, campaign_id, campaign_name, impressions, clicks, cost_micros, conversions)"
    )
    everything = []
    for day, rows in made.items():
        (folder / f"{day}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        (folder / f"{day}.json").write_bytes(orjson.dumps({"items": rows}))
        with (folder / f"{day}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        pa.parquet.write_table(pa.Table.from_pylist(list(rows)), folder / f"{day}.parquet")
        values = [(str(day), *(row[name] for name in names)) for row in rows]
        database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        everything += [{"day": str(day), **row} for row in rows]
    (folder / "all.json").write_bytes(orjson.dumps({"items": everything}))
    database.commit()
    database.close()


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Python's own file server, in a process of its own: it must not share our interpreter lock."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            try:
                urlopen(f"{url}/all.json").close()
                break
            except URLError:  # not listening yet
                continue
        yield url
    finally:
        server.terminate()
        server.wait()


def _files(folder: Path, ending: str, dates: Sequence[date], read: Callable[[Path], Sequence[Any]]) -> Feed:
    options = {"folder": str(folder), "path": f"{{date}}.{ending}"}
    return Feed(
        f"files, {ending}",
        "files",
        options,
        query(),
        lambda: sum(len(read(folder / f"{day}.{ending}")) for day in dates),
    )


def _read_json_lines(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [orjson.loads(line) for line in file]


def _read_csv(path: Path) -> list[Any]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _read_parquet(path: Path) -> list[Any]:
    return list(pa.parquet.read_table(path).to_pylist())


def _sql(folder: Path, dates: Sequence[date]) -> int:
    database = sqlite3.connect(folder / "rows.db")
    try:
        return len(database.execute(_SELECT, {"first_date": str(dates[0]), "last_date": str(dates[-1])}).fetchall())
    finally:
        database.close()


def _http(url: str) -> int:
    with urlopen(url) as answer:
        return len(orjson.loads(answer.read())["items"])

"""The yardstick: a plain script of one process that uses only Penstock's demo rows.

For each batch of whole days: write the raw files and sync them, read them back and check them, write the state to
SQLite in one transaction, write one packed Parquet file per day.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.json
import pyarrow.parquet as pq
from ulid import ULID

from bench.measure import Content, Measured, Memory, Stopwatch
from bench.workload import QUERY, SOURCE, Rows, Workload, demo_rows

_BATCH_PARTITIONS = 1000

_FIELDS = pa.schema(
    [
        ("campaign_id", pa.int64()),
        ("campaign_name", pa.string()),
        ("impressions", pa.int64()),
        ("clicks", pa.int64()),
        ("cost_micros", pa.int64()),
        ("conversions", pa.float64()),
    ]
)
_STRICT = pa.json.ParseOptions(explicit_schema=_FIELDS, unexpected_field_behavior="error")

_TABLES = """
CREATE TABLE partition_state (
    source TEXT, customer_id TEXT, query_name TEXT, logical_date TEXT, status TEXT NOT NULL, run_id TEXT,
    record_count INTEGER, error_message TEXT, attempt_count INTEGER NOT NULL, updated_at TEXT NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date)
) WITHOUT ROWID;
CREATE TABLE attempt (
    source TEXT, customer_id TEXT, query_name TEXT, logical_date TEXT, run_id TEXT, outcome TEXT NOT NULL,
    record_count INTEGER, payload_sha256 TEXT, payload_bytes INTEGER, error_message TEXT, finished_at TEXT NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id)
) WITHOUT ROWID;
"""
_UPSERT = """
INSERT INTO partition_state VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?)
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET status = excluded.status,
    run_id = excluded.run_id, record_count = excluded.record_count, error_message = excluded.error_message,
    attempt_count = attempt_count + 1, updated_at = excluded.updated_at
"""
_ATTEMPT = "INSERT INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PREVIOUS = "SELECT customer_id, logical_date, record_count FROM partition_state WHERE logical_date BETWEEN ? AND ?"


@dataclass(frozen=True, slots=True)
class _Checked:
    customer_id: str
    day: date
    seal: dict[str, Any]
    table: pa.Table | None
    error: str | None


def measure(workload: Workload, folder: Path) -> Measured:
    """Do the workload, run the queries, and return the measurements."""
    settings = workload.settings(folder)
    run_id = str(ULID())
    with Memory() as memory:
        script = _Script(folder / "lake", run_id, demo_rows(settings, run_id))
        script.run(workload)
        peaks = memory.peaks()
    content = script.ask(workload.customers[0])
    return Measured("yardstick", workload.partitions, workload.rows, content, dict(script.watch.seconds), peaks)


class _Script:
    def __init__(self, lake: Path, run_id: str, rows: Rows) -> None:
        self._raw = f"{lake}/raw/{SOURCE}"
        self._warehouse = f"{lake}/warehouse"
        self._run_id = run_id
        self._rows = rows
        os.makedirs(self._warehouse)
        self._sync = _syncfs(self._warehouse)
        self._database = sqlite3.connect(lake.parent / "yardstick.db", isolation_level=None)
        self._database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {_TABLES}")
        self.watch = Stopwatch()

    def run(self, workload: Workload) -> None:
        began = time.perf_counter()
        customers = workload.customers
        step = max(1, _BATCH_PARTITIONS // len(customers))
        for at in range(0, workload.days, step):
            self._batch(customers, workload.dates[at : at + step])
        self.watch.begin("load")
        self._sync()
        self.watch.end()
        self.watch.seconds["run"] = time.perf_counter() - began

    def _batch(self, customers: Sequence[str], days: Sequence[date]) -> None:
        self.watch.begin("extract")
        for customer_id in customers:
            for day in days:
                self._extract(customer_id, day)
        self._sync()
        self.watch.begin("validate")
        checked = list(self._validate(customers, days))
        self._record(checked)
        self.watch.begin("load")
        for day in days:
            self._load(day, [item for item in checked if item.day == day])
        self.watch.end()

    def _folder(self, customer_id: str, day: date) -> str:
        return (
            f"{self._raw}/customer_id={customer_id}/query_name={QUERY}"
            f"/logical_date={day.isoformat()}/run_id={self._run_id}"
        )

    def _extract(self, customer_id: str, day: date) -> None:
        lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in self._rows(customer_id, day)]
        payload = b"".join(lines)
        folder = self._folder(customer_id, day)
        os.makedirs(folder)
        name = f"payload-{ULID()}.jsonl"
        _write(f"{folder}/{name}", payload)
        seal = {
            "payload": name,
            "source": SOURCE,
            "customer_id": customer_id,
            "query_name": QUERY,
            "logical_date": day,
            "run_id": self._run_id,
            "extracted_at": datetime.now(UTC),
            "schema_version": "v1",
            "record_count": len(lines),
            "payload_sha256": sha256(payload).hexdigest(),
            "payload_bytes": len(payload),
            "api_version": "demo-1",
            "time_zone": "UTC",
        }
        _write(f"{folder}/.metadata.json", orjson.dumps(seal, option=orjson.OPT_SORT_KEYS))
        os.replace(f"{folder}/.metadata.json", f"{folder}/metadata.json")

    def _validate(self, customers: Sequence[str], days: Sequence[date]) -> Iterator[_Checked]:
        earlier = self._database.execute(_PREVIOUS, (days[0].isoformat(), days[-1].isoformat()))
        previous = {(customer_id, day): count for customer_id, day, count in earlier}
        for customer_id in customers:
            for day in days:
                folder = self._folder(customer_id, day)
                seal = orjson.loads(_read(f"{folder}/metadata.json"))
                payload = _read(f"{folder}/{seal['payload']}")
                try:
                    table = _parsed(payload, seal)
                    error = _complaint(table, previous.get((customer_id, day.isoformat())))
                except ValueError as problem:  # pa.ArrowInvalid is one
                    table, error = None, str(problem)
                yield _Checked(customer_id, day, seal, table, error)

    def _record(self, checked: Sequence[_Checked]) -> None:
        now = datetime.now(UTC).isoformat()
        states, attempts = [], []
        for item in checked:
            key = (SOURCE, item.customer_id, QUERY, item.day.isoformat())
            count, error = item.seal["record_count"], item.error
            states.append((*key, "failed" if error else "success", self._run_id, count, error, now))
            digest, size = item.seal["payload_sha256"], item.seal["payload_bytes"]
            outcome = "FAILED" if error else "SUCCEEDED"
            attempts.append((*key, self._run_id, outcome, count, digest, size, error, now))
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(_UPSERT, states)
        self._database.executemany(_ATTEMPT, attempts)
        self._database.execute("COMMIT")

    def _load(self, day: date, checked: Sequence[_Checked]) -> None:
        good = [(item.customer_id, item.table) for item in checked if item.table is not None and not item.error]
        rows = pa.concat_tables([table for _, table in good])
        owners = pa.array([customer_id for customer_id, _ in good])
        places = pa.array([place for place, (_, table) in enumerate(good) for _ in range(table.num_rows)])
        rows = rows.add_column(0, "customer_id", owners.take(places))
        rows = rows.add_column(1, "logical_date", pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows))
        rows = rows.append_column("_run_id", pa.repeat(self._run_id, rows.num_rows))
        path = f"{self._warehouse}/logical_date={day.isoformat()}.parquet"
        pq.write_table(rows, f"{path}.tmp", compression="zstd", compression_level=1)
        os.replace(f"{path}.tmp", path)

    def ask(self, customer_id: str) -> Content:
        """The questions that a user has, and the totals that the other side must reach, too."""
        counts = self.watch.ask("status", self._status)
        whole = self.watch.ask("read_all", lambda: self._dataset().to_table())
        one = pc.field("customer_id") == customer_id
        self.watch.ask("read_customer", lambda: self._dataset().to_table(filter=one))
        self.watch.ask("sql", self._aggregate)
        [(size,)] = self._database.execute("SELECT sum(payload_bytes) FROM attempt WHERE outcome = 'SUCCEEDED'")
        clicks = pc.sum(whole.column("clicks")).as_py()
        return Content(counts.get("success", 0), whole.num_rows, int(clicks or 0), size)

    def _status(self) -> dict[str, int]:
        return dict(self._database.execute("SELECT status, count(*) FROM partition_state GROUP BY status").fetchall())

    def _dataset(self) -> ds.Dataset:
        return ds.dataset(self._warehouse, format="parquet")

    def _aggregate(self) -> list[Any]:
        select = "SELECT customer_id, sum(clicks), sum(cost_micros) FROM read_parquet(?) GROUP BY customer_id"
        with duckdb.connect() as connection:
            return connection.execute(select, [f"{self._warehouse}/*.parquet"]).fetchall()


def _parsed(payload: bytes, seal: dict[str, Any]) -> pa.Table:
    if sha256(payload).hexdigest() != seal["payload_sha256"]:
        raise ValueError("the digest differs")
    if payload.count(b"\n") != seal["record_count"]:
        raise ValueError("the number of records differs")
    options = pa.json.ReadOptions(use_threads=False, block_size=len(payload) + 1)
    table = pa.json.read_json(pa.BufferReader(payload), read_options=options, parse_options=_STRICT)
    if table.num_rows != seal["record_count"]:
        raise ValueError("some lines are not rows")
    return table


def _complaint(table: pa.Table, previous: int | None) -> str | None:
    ids = table.column("campaign_id")
    if not table.num_rows:
        return "no rows"
    if ids.null_count:
        return "campaign_id is missing"
    if pc.count_distinct(ids).as_py() != table.num_rows:
        return "campaign_id is not unique"
    if pc.all(pc.less_equal(table.column("clicks"), table.column("impressions"))).as_py() is False:
        return "clicks <= impressions does not hold"
    if previous and table.num_rows < 0.5 * previous:
        return "too few rows"
    return None


def _write(path: str, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _syncfs(folder: str) -> Any:
    """A function that makes all earlier writes durable."""
    syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    handle = os.open(folder, os.O_RDONLY)
    return lambda: syncfs(handle)

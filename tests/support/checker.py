"""An independent checker of a workspace: compares the state database, the Delta tables and the sealed payloads.

It imports nothing from Penstock except the format of keys, and reads with sqlite3, psycopg, deltalake, pyarrow and
boto3. Each function returns violations as sentences; an empty list means that the workspace is correct.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
import zstandard
from deltalake import DeltaTable

from penstock.partition import PartitionKey
from support.lake_files import LakeFiles
from support.payload_rows import payload_columns, payload_rows, table_rows
from support.state_tables import Row, StateTables, key_of, read_state

VERDICTS = ("SUCCEEDED", "FAILED")


def check_workspace(folder: Path) -> list[str]:
    """Check the workspace of a folder with a `penstock.yaml`."""
    return check(*places(folder))


def check(state: str, lake: str, schema: str | None = None) -> list[str]:
    """Check all rules between the state database, the warehouse and the raw payloads, at this moment."""
    return sorted(_Checker(read_state(state, schema), LakeFiles(lake)).violations())


def check_state(state: str, schema: str | None = None) -> list[str]:
    """Check the rules inside the state database only; for tests without a lake."""
    checker = _Checker(read_state(state, schema), None)
    return sorted([*checker.attempts(), *checker.authority(), *checker.pointers()])


def places(folder: Path) -> tuple[str, str, str | None]:
    """The URL of the state database, that of the lake, and the database schema of a workspace."""
    text = os.path.expandvars((folder / "penstock.yaml").read_text())
    body: dict[str, Any] = yaml.safe_load(text)
    state, lake = str(body.get("state", "sqlite:///state.db")), str(body.get("lake", "./lake"))
    if state.startswith("sqlite:///"):
        state = f"sqlite:///{folder / state.removeprefix('sqlite:///')}"
    return state, lake if "://" in lake else str(folder / lake), body.get("schema")


class _Checker:
    """One pass over everything. Maps are built once, by partition."""

    def __init__(self, state: StateTables, lake: LakeFiles | None) -> None:
        self._state = state
        self._lake = lake
        self._states = {key_of(row): row for row in state.partition_state}
        self._pointers = {key_of(row): row for row in state.warehouse_pointer}
        self._due = {key_of(row) for row in state.publish_due}
        self._bodies = {row["fingerprint"]: row["body"] for row in state.contract}
        self._attempts: dict[PartitionKey, dict[str, Row]] = defaultdict(dict)
        for row in state.partition_attempt:
            self._attempts[key_of(row)][row["run_id"]] = row
        self._payloads: dict[tuple[PartitionKey, str], tuple[str, bytes]] = {}

    def violations(self) -> Iterator[str]:
        yield from self.attempts()
        yield from self.authority()
        yield from self.pointers()
        yield from self.payloads()
        for table in self._state.warehouse_table:
            if table["version"] is not None:
                yield from self.table(table)

    # --- attempts and verdicts ------------------------------------------------------------------------------------

    def attempts(self) -> Iterator[str]:
        rechecks = Counter(self._rechecks())
        for key, mine in self._attempts.items():
            numbers = sorted(row["attempt_no"] for row in mine.values())
            if numbers != list(range(1, len(numbers) + 1)):
                yield f"{key}: attempts are numbered {numbers}, not from 1 without gaps"
            open_runs = [run for run, row in mine.items() if row["outcome"] is None]
            if len(open_runs) > 1:
                yield f"{key}: {len(open_runs)} attempts are open: {', '.join(sorted(open_runs))}"
            if any(mine[run]["attempt_no"] < numbers[-1] for run in open_runs):
                yield f"{key}: an attempt is open though a newer one was issued"
            verdicts = sum(row["outcome"] in VERDICTS for row in mine.values()) + rechecks[key]
            counted = self._states[key]["attempt_count"] if key in self._states else 0
            if counted != verdicts:
                yield f"{key}: attempt_count is {counted}, but there are {verdicts} verdicts"
        for key in self._states.keys() - self._attempts.keys():
            yield f"{key}: has a state but no attempt"

    def _rechecks(self) -> Iterator[PartitionKey]:
        """A partition for each demotion by re-check, from the events of the database and of exported segments."""
        payloads = [row["payload"] for row in self._state.authority_events]
        for segment in self._state.ledger_segment if self._lake else ():
            data = self._lake.read(segment["path"]) if self._lake else None
            if data is not None and hashlib.sha256(data).hexdigest() == segment["sha256"]:
                table = pq.read_table(pa.BufferReader(data), columns=["type", "payload"])
                payloads += [json.loads(p["payload"]) for p in table.to_pylist() if p["type"] == "AuthorityChanged"]
        for payload in payloads:
            if payload["act"] == "re-check":
                yield PartitionKey.parse(payload["partition_key"])

    # --- authority and pointers -----------------------------------------------------------------------------------

    def authority(self) -> Iterator[str]:
        for key, state in self._states.items():
            if state["status"] != "success":
                continue
            run = state["current_run_id"]
            attempt = self._attempts[key].get(run)
            if attempt is None:
                yield f"{key}: is success on run {run}, which has no attempt"
                continue
            if attempt["outcome"] != "SUCCEEDED" and attempt["approved_at"] is None:
                yield f"{key}: is success on run {run}, which was neither accepted nor approved"
            if attempt["demoted_at"] is not None:
                yield f"{key}: is success on run {run}, which was demoted"
            for name in ("record_count", "schema_version"):
                if attempt[name] != state[name]:
                    yield f"{key}: {name} is {state[name]}, its run {run} has {attempt[name]}"

    def pointers(self) -> Iterator[str]:
        for key, state in self._states.items():
            pointer = self._pointers.get(key)
            if key in self._due:
                if pointer and pointer["available"] and state["status"] != "success":
                    yield f"{key}: readers see run {pointer['run_id']}, but its status is {state['status']}"
                continue
            if state["status"] == "success":
                served = pointer and pointer["available"] and (pointer["run_id"], pointer["schema_version"])
                if served != (state["current_run_id"], state["schema_version"]):
                    yield (
                        f"{key}: authority is run {state['current_run_id']}, the pointer serves"
                        f" {served[0] if served else 'nothing'}, and nothing waits to be published"
                    )
            elif pointer and (pointer["available"] or pointer["hidden_at"] is None):
                status = state["status"]
                yield f"{key}: its status is {status}, its rows are not hidden, and nothing waits to be published"
        for key in self._pointers.keys() - self._states.keys():
            yield f"{key}: has a pointer but no state"

    # --- raw payloads -----------------------------------------------------------------------------------------------

    def payloads(self) -> Iterator[str]:
        """Every payload of a verdict that was not deleted matches its seal and the verdict."""
        for key, mine in self._attempts.items():
            for run, row in mine.items():
                if row["payload_digest"] is not None and row["raw_deleted_at"] is None:
                    yield from self._payload(key, run, row)

    def _payload(self, key: PartitionKey, run: str, attempt: Row) -> Iterator[str]:
        assert self._lake is not None
        folder = (
            f"raw/{key.source}/customer_id={key.customer_id}/query_name={key.query_name}"
            f"/logical_date={key.logical_date.isoformat()}/run_id={run}"
        )
        document = self._lake.read(f"{folder}/metadata.json")
        if document is None:
            yield f"{key}: run {run} is not sealed: there is no {folder}/metadata.json"
            return
        try:
            seal = json.loads(document)
            name, digest, size, records = (
                seal[field] for field in ("payload", "payload_sha256", "payload_bytes", "record_count")
            )
        except (ValueError, KeyError, TypeError) as error:
            yield f"{key}: the seal of run {run} cannot be read: {error!r}"
            return
        data = self._lake.read(f"{folder}/{name}")
        if data is None:
            yield f"{key}: the payload {name} of run {run} is missing"
            return
        if name.endswith(".zst"):
            try:
                data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
            except zstandard.ZstdError as error:
                yield f"{key}: the payload {name} of run {run} cannot be decompressed: {error}"
                return
            name = name.removesuffix(".zst")
        found = hashlib.sha256(data).hexdigest()
        if (found, len(data)) != (digest, size):
            yield f"{key}: the payload of run {run} has {len(data)} bytes of {found}, its seal says {size} of {digest}"
            return
        if digest != attempt["payload_digest"]:
            yield f"{key}: the seal of run {run} names payload {digest}, the verdict {attempt['payload_digest']}"
        count = _record_count(name, data)
        if not (count == records == attempt["record_count"]):
            yield f"{key}: run {run} has {count} records, its seal {records}, its verdict {attempt['record_count']}"
        self._payloads[key, run] = name, data

    # --- warehouse --------------------------------------------------------------------------------------------------

    def table(self, row: Row) -> Iterator[str]:
        """The rows of one table at its head: complete partitions of one run each, with the rows of their payloads."""
        assert self._lake is not None
        name, version = row["table_name"], row["version"]
        try:
            delta = DeltaTable(self._lake.uri(row["location"]), version=version)
            rows = delta.to_pyarrow_table()
        except Exception as error:  # noqa: BLE001 - deltalake and Arrow have many errors; each means unreadable
            yield f"{name}: version {version} cannot be read: {error}"
            return
        if paths := _repeated(delta):
            yield f"{name}: version {version} names a file more than once: {', '.join(paths)}"
        slices = _slices(rows, row["source"], row["query_name"])
        for key, by_run in slices.items():
            yield from self._slice(name, rows, key, by_run)
        for key, pointer in self._pointers.items():
            if pointer["table_name"] != name:
                continue
            if pointer["table_version"] > version:
                yield f"{key}: its pointer names version {pointer['table_version']} of {name}, the head is {version}"
            if pointer["hidden_at"] is None and pointer["record_count"] and key not in slices:
                yield f"{key}: its pointer names {pointer['record_count']} rows, {name} has none"

    def _slice(self, table: str, rows: pa.Table, key: PartitionKey, by_run: dict[str, list[int]]) -> Iterator[str]:
        """The rows of one partition, visible or hidden by an exception."""
        pointer = self._pointers.get(key)
        if pointer is None or pointer["table_name"] != table or pointer["hidden_at"] is not None:
            yield f"{key}: {table} shows rows of run {', '.join(sorted(by_run))}, but no pointer names them"
            return
        run = pointer["run_id"]
        if set(by_run) != {run}:
            yield f"{key}: {table} holds rows of run {', '.join(sorted(by_run))}, the pointer names {run}"
            return
        if len(by_run[run]) != pointer["record_count"]:
            yield f"{key}: {table} holds {len(by_run[run])} rows of run {run}, the pointer {pointer['record_count']}"
        if (key, run) not in self._payloads:
            attempt = self._attempts[key].get(run)
            if attempt is None or attempt["payload_digest"] is None:
                yield f"{key}: {table} holds run {run}, which has no accepted payload"
            elif attempt["raw_deleted_at"] is not None:
                yield f"{key}: the raw data of run {run} was deleted though {table} holds its rows"
            return  # a payload that cannot be read was reported before
        columns = payload_columns(rows.schema)
        found = Counter(table_rows(rows.take(by_run[run]), columns))
        body = self._bodies[self._attempts[key][run]["contract_fingerprint"]]
        expected = Counter(payload_rows(*self._payloads[key, run], body, columns))
        if found != expected:
            example = next(iter((found - expected) or (expected - found)))
            yield (
                f"{key}: the rows in {table} are not those of the payload of run {run}:"
                f" {(found - expected).total()} are unknown, {(expected - found).total()} are missing, e.g. {example}"
            )


def _record_count(name: str, data: bytes) -> int:
    if name.endswith(".parquet"):
        return int(pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows)
    return data.count(b"\n")


def _repeated(delta: DeltaTable) -> list[str]:
    paths = Counter(re.sub(r"^.*/", "", uri) for uri in delta.file_uris())
    return [path for path, count in paths.items() if count > 1]


def _slices(rows: pa.Table, source: str, query: str) -> dict[PartitionKey, dict[str, list[int]]]:
    """The numbers of the rows by partition and run."""
    found: dict[PartitionKey, dict[str, list[int]]] = {}
    columns = [rows.column(name).to_pylist() for name in ("customer_id", "logical_date", "_run_id")]
    for at, (customer, day, run) in enumerate(zip(*columns, strict=True)):
        found.setdefault(PartitionKey(source, customer, query, day), {}).setdefault(run, []).append(at)
    return found

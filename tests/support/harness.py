"""A workspace without Spark: the real stores, lake and publisher, staging in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import sqlalchemy as sa

from penstock.app import Workspace
from penstock.contract.content import row_hashes
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema
from penstock.control.lake_evidence import table_contract
from penstock.db import schema as tables
from penstock.errors import ErrorClass
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.pipeline.load import stage_part
from penstock.pipeline.verify import Content, table_damage
from penstock.raw.sink import RawSink
from penstock.state.control import ControlStore
from penstock.state.records import Accepted, Planned, Rejected
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from penstock.warehouse.format import Table
from penstock.warehouse.publish import Publication, Publisher
from penstock.warehouse.rebuild import Rebuilder, Rebuilt, TableDamage
from penstock.warehouse.staging import PartStaged, StagePart
from support.workspaces import CAMPAIGNS, open_at, rows_by_partition, write_workspace

FIELDS = [{"name": "campaign_id", "type": "long"}, {"name": "clicks", "type": "long"}]
FIELDS_OF = {
    "v1": FIELDS,
    "v2": [*FIELDS, {"name": "cost_micros", "type": "long"}],
    "text": [FIELDS[0], {"name": "clicks", "type": "string"}],
    "wide": [*FIELDS, {"name": "campaign_name", "type": "string"}],
}
WIDE_BYTES = 1000
SHRUNK = {"check": "shrink", "severity": "reject", "message": "3 rows instead of 30", "count": 1}


def content_digest(rows: pa.Table, version: str = "v1") -> str:
    """A contract as the validator builds it."""
    content = Content(rows.num_rows)
    for number in row_hashes(rows).tolist():
        content.total = (content.total + number) % 2**64
        content.xor ^= number - 2**64 if number >= 2**63 else number
    return content.digest(version)


class Harness:
    """Delivers accepted partitions and publishes them. Opens an existing workspace in the folder as it is."""

    def __init__(
        self,
        folder: Path,
        queries: Sequence[str] = ("campaign_daily",),
        state: str | None = None,
        schema: str | None = None,
        version: str = "v1",
        lake: str = "./lake",
        query: Mapping[str, Any] | None = None,
    ) -> None:
        if query or not (folder / "penstock.yaml").exists():
            body = {**CAMPAIGNS, "schema_version": version, "fields": FIELDS_OF[version], "checks": [], **(query or {})}
            settings: dict[str, Any] = {"queries": dict.fromkeys(queries, body), "customers": 9, "lake": lake}
            if state:
                settings |= {"state": state, "schema": schema}
            write_workspace(folder, **settings)
        self.folder = folder
        self.workspace: Workspace = open_at(folder)
        self.control = ControlStore(self.workspace.context.database, self.now)
        self.validator = ValidatorStore(self.workspace.context.database, self.now)
        self.workers = WorkerStore(self.workspace.context.database, self.now)
        self._contracts = self.workspace.context.contracts
        self.control.store_contracts(
            [(c.fingerprint, c.source, c.query_name, c.schema_version, c.body()) for c in self._contracts.values()]
        )

    def under(self, version: str) -> Harness:
        """The same state and lake, under a workspace file with another schema version."""
        database = self.workspace.context.database
        url = database.url.render_as_string(hide_password=False)
        queries = tuple(self._contracts)
        return Harness(self.folder / version, queries, url, database.schema, version, self.workspace.context.lake.url)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def deliver(self, slices: Mapping[PartitionKey, int], rows: int = 3) -> RunId:
        """Run: each partition gets `rows` rows with these clicks, received, sealed and accepted."""
        run_id, delivered = self.offer(slices, rows)
        assert delivered == set(slices)
        return run_id

    def offer(self, slices: Mapping[PartitionKey, int], rows: int = 3) -> tuple[RunId, set[PartitionKey]]:
        """The same with concurrent deliveries: partitions that another worker holds are skipped."""
        token, run_id = self.workers.register(), new_run_id()
        contracts = {key: self._contracts[key.query_name] for key in slices}
        seen = self._last_attempts()
        planned = [
            Planned(k, seen.get(k, 0), AttemptReason.MISSING, c.fingerprint, c.schema_version)
            for k, c in contracts.items()
        ]
        issued, _ = self.control.issue(run_id, token, 0, planned)
        verdicts = [self._accepted(i.attempt, slices[i.attempt.partition], rows, token) for i in issued]
        applied = self.validator.judge(verdicts).applied
        assert len(applied) == len(issued)
        self.workers.stop(token)
        return run_id, {attempt.partition for attempt in applied}

    def hold_back(self, partition: PartitionKey, complaints: Sequence[Mapping[str, Any]] = (SHRUNK,)) -> RunId:
        """A run that was received and sealed, and that checks rejected."""
        token, seen, contract = (
            self.workers.register(),
            self._last_attempts(),
            self.workspace.context.contracts["campaign_daily"],
        )
        plan = Planned(
            partition, seen.get(partition, 0), AttemptReason.MISSING, contract.fingerprint, contract.schema_version
        )
        [issued], _ = self.control.issue(new_run_id(), token, 0, [plan])
        whole = self._accepted(issued.attempt, clicks=7, rows=3, token=token)
        verdict = Rejected(
            issued.attempt, token, Stage.VALIDATE, ErrorClass.DATA, "shrunk", [dict(c) for c in complaints],
            whole.record_count, whole.payload_digest, whole.payload_bytes, whole.content_digest,
        )  # fmt: skip
        assert self.validator.judge([verdict]).applied
        self.workers.stop(token)
        return issued.attempt.run_id

    def _last_attempts(self) -> dict[PartitionKey, int]:
        c = tables.partition_attempt.c
        keys = [c[name] for name in tables.KEY]
        with self.workspace.context.database.snapshot() as connection:
            rows = connection.execute(sa.select(*keys, sa.func.max(c.attempt_no)).group_by(*keys)).all()
        return {PartitionKey(*row[:4]): row[4] for row in rows}

    def _accepted(self, attempt: AttemptKey, clicks: int, rows: int, token: str) -> Accepted:
        contract = self._contracts[attempt.partition.query_name]
        text = any(field.name == "clicks" and field.type == "string" for field in contract.fields)
        fixed = {
            "clicks": str(clicks) if text else clicks,
            "cost_micros": 10 * clicks,
            "campaign_name": "n" * WIDE_BYTES,
        }
        names = [field.name for field in contract.fields]
        columns = {name: [fixed[name]] * rows if name in fixed else list(range(rows)) for name in names}
        writer = RawSink(self.workspace.context.lake).writer(attempt)
        for values in zip(*columns.values(), strict=True):
            writer.write(orjson.dumps(dict(zip(names, values, strict=True))))
        version = contract.schema_version
        seal = writer.seal(self.now(), version, "1", "q", "UTC")
        digest = content_digest(pa.table(columns, schema=arrow_schema(contract.fields)), version)
        return Accepted(attempt, token, version, rows, seal.payload_sha256, seal.payload_bytes, digest)

    def publisher(self, token: str | None = None) -> tuple[Publisher, str]:
        """A publisher of a new worker, or of the given one, and the worker's token."""
        token = token or self.workers.register()
        kept = [Contract.from_body(row.body) for row in self.workspace.context.state.contracts()]
        contracts = {c.fingerprint: c for c in kept}
        fields = {c.table: arrow_schema(c.columns) for c in kept}
        publisher = Publisher(
            self.workspace.context.database,
            self.workspace.context.lake,
            self.now,
            token,
            fields.__getitem__,
            lambda parts, prints: self.stage(parts, prints, contracts),
            2,
        )
        return publisher, token

    def stage(
        self, parts: Sequence[StagePart], prints: Mapping[PartitionKey, str], contracts: Mapping[str, Contract]
    ) -> list[PartStaged]:
        used = [[contracts[prints[piece.key]] for piece in p.part.slices] for p in parts]
        return [stage_part(self.workspace.context.lake, p, mine) for p, mine in zip(parts, used, strict=True)]

    def publish(self) -> Publication:
        publisher, token = self.publisher()
        done = publisher.publish()
        self.workers.stop(token)
        return done

    def rebuilder(self) -> tuple[Rebuilder, str]:
        """A rebuilder that stages in this process, and the token of its worker."""
        publisher, token = self.publisher()
        ws = self.workspace
        contracts = {c.fingerprint: c for c in ws.context.contracts.values()}

        def examine(table: Table) -> TableDamage:
            return table_damage(
                ws.context.database, ws.context.lake, table, table_contract(table, contracts), lambda share: None
            )

        return Rebuilder(publisher, examine), token

    def rebuild(self, asset: str) -> Rebuilt:
        """Rebuild the tables of an asset from the database."""
        rebuilder, token = self.rebuilder()
        done = rebuilder.rebuild(asset)
        self.workers.stop(token)
        return done

    def grow_old(self) -> None:
        """Every data file was written two days ago, so that vacuum may take it."""
        past = (datetime.now(UTC) - timedelta(days=2)).timestamp()
        for path in Path(self.workspace.context.lake.url).glob("warehouse/**/*.parquet"):
            os.utime(path, (past, past))

    def unfinished(self) -> set[str]:
        """The tables of prepared publications that are neither finished nor dropped."""
        batch = tables.load_batch
        with self.workspace.context.database.snapshot() as connection:
            bodies = connection.scalars(sa.select(batch.c.body).where(batch.c.status == "prepared")).all()
        return {name for body in bodies for name in body}

    def batches(self) -> dict[str, str]:
        """Every publication, with its status."""
        batch = tables.load_batch.c
        with self.workspace.context.database.snapshot() as connection:
            return {row.batch_id: row.status for row in connection.execute(sa.select(batch.batch_id, batch.status))}

    def clicks(self, query: str = "campaign_daily") -> dict[PartitionKey, set[int]]:
        """The visible rows: for each partition the different values of clicks (more than one would be a mixture)."""
        rows = rows_by_partition(self.workspace, f"demo.{query}")
        return {key: {row["clicks"] for row in found} for key, found in rows.items()}

"""A whole house without Spark: the real stores, lake and publisher, staging in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from penstock.app import Workspace
from penstock.contract.content import row_hashes
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.pipeline.load import stage_part
from penstock.pipeline.verify import Content
from penstock.raw.sink import RawSink
from penstock.state.control import ControlStore
from penstock.state.records import Accepted, Planned
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from penstock.warehouse.publish import PartStaged, Publication, Publisher, StagePart
from workspaces import CAMPAIGNS, open_at, rows_by_partition, write_workspace

FIELDS = [{"name": "campaign_id", "type": "long"}, {"name": "clicks", "type": "long"}]


def content_digest(rows: pa.Table) -> str:
    """As the validator makes it."""
    content = Content(rows.num_rows)
    for number in row_hashes(rows).tolist():
        content.total = (content.total + number) % 2**64
        content.xor ^= number - 2**64 if number >= 2**63 else number
    return content.digest("v1")


class House:
    """Delivers accepted slices and publishes them."""

    def __init__(
        self,
        folder: Path,
        queries: Sequence[str] = ("campaign_daily",),
        state: str | None = None,
        schema: str | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> None:
        body = {**CAMPAIGNS, "fields": FIELDS, "checks": [], **(query or {})}
        settings: dict[str, Any] = {"queries": dict.fromkeys(queries, body), "customers": 9}
        if state:
            settings |= {"state": state, "schema": schema}
        self.workspace: Workspace = open_at(write_workspace(folder, **settings))
        self.control = ControlStore(self.workspace.database, self.now)
        self.validator = ValidatorStore(self.workspace.database, self.now)
        self.workers = WorkerStore(self.workspace.database, self.now)
        self._contracts = self.workspace.contracts
        self.control.keep_contracts(
            [(c.fingerprint, c.source, c.query_name, c.schema_version, c.body()) for c in self._contracts.values()]
        )

    def now(self) -> datetime:
        return datetime.now(UTC)

    def deliver(self, slices: Mapping[PartitionKey, int], rows: int = 3) -> RunId:
        """A run in which each slice has `rows` rows with these clicks, received, sealed and accepted."""
        token, run_id = self.workers.register(), new_run_id()
        contracts = {key: self._contracts[key.query_name] for key in slices}
        seen = {key: max((a.attempt_no for a in self.workspace.reader.attempts(key)), default=0) for key in slices}
        planned = [Planned(k, seen[k], "missing", c.fingerprint, c.schema_version) for k, c in contracts.items()]
        issued, refused = self.control.issue(run_id, token, 0, planned)
        assert not refused
        verdicts = [self._accepted(i.attempt, slices[i.attempt.partition], rows, token) for i in issued]
        assert len(self.validator.accept(verdicts).applied) == len(slices)
        self.workers.stop(token)
        return run_id

    def _accepted(self, attempt: AttemptKey, clicks: int, rows: int, token: str) -> Accepted:
        writer = RawSink(self.workspace.lake).writer(attempt)
        for number in range(rows):
            writer.write(orjson.dumps({"campaign_id": number, "clicks": clicks}))
        seal = writer.seal(self.now(), "v1", "1", "q", "UTC")
        numbers = pa.table(
            {"campaign_id": pa.array(range(rows), pa.int64()), "clicks": pa.array([clicks] * rows, pa.int64())}
        )
        return Accepted(attempt, token, "v1", rows, seal.payload_sha256, seal.payload_bytes, content_digest(numbers))

    def publisher(self) -> tuple[Publisher, str]:
        """A publisher of a worker of its own, and the worker's token."""
        token = self.workers.register()
        contracts = {row.fingerprint: Contract.from_body(row.body) for row in self.workspace.reader.contracts()}
        fields = {c.table: arrow_schema(c.columns) for c in self._contracts.values()}
        publisher = Publisher(
            self.workspace.database,
            self.workspace.lake,
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
        return [stage_part(self.workspace.lake, p, mine) for p, mine in zip(parts, used, strict=True)]

    def publish(self) -> Publication:
        publisher, token = self.publisher()
        done = publisher.publish()
        self.workers.stop(token)
        return done

    def clicks(self, query: str = "campaign_daily") -> dict[PartitionKey, set[int]]:
        """What readers see: for each slice the different values of clicks (more than one would be a mixture)."""
        rows = rows_by_partition(self.workspace, f"demo.{query}")
        return {key: {row["clicks"] for row in found} for key, found in rows.items()}

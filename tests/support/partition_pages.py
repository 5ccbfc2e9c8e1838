"""A workspace for the pages of partitions: hostile texts, several runs of one partition, and a model. Without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from penstock.app import load_workspace
from penstock.lifecycle import AttemptReason
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.raw.sink import RawSink
from penstock.state.inputs import InputStore
from penstock.state.records import Accepted, Consumed, Planned
from support.builders import rejected
from support.harness import FIELDS, Harness
from support.workspaces import CAMPAIGNS, key, write_workspace

HOSTILE = "<script>alert('x')</script>\"&<img src=x onerror=alert(1)>"
ZONE = "America/New_York"
MODEL = PartitionKey.parse("models/all/spend/2024-06-09")
CHECKS: list[dict[str, Any]] = [{"unique": ["campaign_id"]}, {"shrink": {"max_drop": 0.5}}]
GOOD = b'{"campaign_id": 1, "clicks": 2}'
BAD = b'{"campaign_id": 2, "clicks": -5, "note": "<script>alert(\'x\')</script>"}'
COMPLAINT = {
    "check": "range",
    "message": f"clicks is negative {HOSTILE}",
    "count": 1,
    "line": 2,
    "example": BAD.decode(),
}


class PartitionHouse(Harness):
    """Customer 1 has a hostile name and a time zone. The model `spend` reads the query of all customers."""

    def __init__(self, folder: Path) -> None:
        query = {**CAMPAIGNS, "fields": FIELDS, "checks": CHECKS, "retry": {"max_age": "20000d"}}
        code = "SELECT logical_date, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY logical_date"
        models = {"spend": {"code": code, "depends_on": ["demo.campaign_daily"]}}
        write_workspace(folder, customers=9, queries={"campaign_daily": query}, models=models)
        file = folder / "penstock.yaml"
        settings = yaml.safe_load(file.read_text())
        settings["customers"][0] |= {"name": HOSTILE, "time_zone": ZONE}
        file.write_text(yaml.safe_dump(settings))
        super().__init__(folder)

    def issue(self, partition: PartitionKey, reason: AttemptReason = AttemptReason.MISSING) -> tuple[AttemptKey, str]:
        """An open attempt, and the token of its worker."""
        contract = self._contracts[partition.query_name]
        token = self.workers.register()
        seen = self._last_attempts().get(partition, 0)
        planned = Planned(partition, seen, reason, contract.fingerprint, contract.schema_version)
        [issued], _ = self.control.issue(new_run_id(), token, 0, [planned])
        return issued.attempt, token

    def reject(
        self,
        partition: PartitionKey,
        lines: Sequence[bytes] = (GOOD, BAD),
        complaints: Sequence[dict[str, Any]] = (COMPLAINT,),
        message: str = f"clicks is negative {HOSTILE}",
        measures: dict[str, float | None] | None = None,
    ) -> RunId:
        """A run that received these lines and was rejected."""
        attempt, token = self.issue(partition)
        seal = self._seal(attempt, lines)
        verdict = rejected(
            attempt,
            token,
            message,
            complaints=complaints,
            record_count=len(lines),
            payload_digest=seal.payload_sha256,
            payload_bytes=seal.payload_bytes,
            content_digest="2:0",
            measures=measures,
        )
        assert self.validator.judge([verdict]).applied
        self.workers.stop(token)
        return attempt.run_id

    def accept(self, partition: PartitionKey, lines: Sequence[bytes]) -> RunId:
        """A run that received these lines and was accepted; nothing checks them."""
        attempt, token = self.issue(partition)
        seal = self._seal(attempt, lines)
        verdict = Accepted(attempt, token, "v1", len(lines), seal.payload_sha256, seal.payload_bytes, "2:1")
        assert self.validator.judge([verdict]).applied
        self.workers.stop(token)
        return attempt.run_id

    def derive(self, *inputs: tuple[PartitionKey, RunId], clicks: int = 7) -> RunId:
        """A run of the model that read these runs."""
        attempt, token = self.issue(MODEL)
        InputStore(self.workspace.context.database).record({attempt: [Consumed(k, run, "2:1") for k, run in inputs]})
        rows = pa.table({"clicks": pa.array([clicks], pa.int64())})
        writer = RawSink(self.workspace.context.lake).rows_writer(attempt, rows.schema)
        for batch in rows.to_batches():
            writer.write(batch)
        seal = writer.seal(self.now(), "v1", "1", "q", "UTC")
        verdict = Accepted(attempt, token, "v1", 1, seal.payload_sha256, seal.payload_bytes, "2:2")
        assert self.validator.judge([verdict]).applied
        self.workers.stop(token)
        return attempt.run_id

    def _seal(self, attempt: AttemptKey, lines: Sequence[bytes]) -> Any:
        writer = RawSink(self.workspace.context.lake).writer(attempt)
        for line in lines:
            writer.write(line)
        return writer.seal(self.now(), "v1", "1", "q", "UTC")


def filled(folder: Path) -> PartitionHouse:
    """Customer 1: two accepted runs and a rejected one. Customer 2: accepted. Customer 3: held back by a guard. The
    model was derived from the first runs of customers 1 and 2."""
    house = PartitionHouse(folder)
    first = house.deliver({key(1): 1, key(2): 1})
    house.publish()
    house.derive((key(1), first), (key(2), first))
    house.deliver({key(1): 2}, rows=5)
    house.publish()
    house.reject(key(1), measures={"sum(clicks)": -3.0})
    guard = {"check": "shrink", "message": "1 row, 80% fewer", "count": 1, "line": None, "example": None}
    house.reject(key(3), [GOOD], [guard], HOSTILE + "e" * 400 + " the end")
    house.workspace.close()
    house.workspace = load_workspace(folder)  # its clock moves
    return house

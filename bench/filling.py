"""Accepted partitions that are due: raw files by the sink, verdicts through the stores of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.simulated_worker import SimulatedWorker, batches
from bench.workload import QUERY
from penstock.app import Workspace
from penstock.flow.heartbeat import Heartbeat
from penstock.lifecycle import AttemptReason
from penstock.partition import AttemptKey, PartitionKey
from penstock.raw.layout import run_folder
from penstock.raw.sink import RawSink
from penstock.state.records import Accepted, Planned
from penstock.state.worker import WorkerStore
from penstock.warehouse.publish import Publication

_BATCH = 5000


class Deliveries:
    """Each delivery is its own run; the clicks in the rows identify the delivery."""

    def __init__(self, workspace: Workspace, rows: int) -> None:
        self._workspace = workspace
        self._rows = rows
        self._delivered: dict[PartitionKey, int] = {}
        self._number = 0

    def deliver(self, keys: Sequence[PartitionKey]) -> list[str]:
        """The paths of the payloads, in the order of `keys`."""
        self._number += 1
        contract, worker = self._workspace.context.contracts[QUERY], SimulatedWorker(self._workspace)
        planned = [
            Planned(
                key, self._delivered.get(key, 0), AttemptReason.MISSING, contract.fingerprint, contract.schema_version
            )
            for key in keys
        ]
        paths: dict[PartitionKey, str] = {}
        for some in batches(planned, _BATCH):
            attempts = worker.issue(some)
            worker.judge([self._accepted(attempt, worker.token, paths) for attempt in attempts])
        self._delivered |= {key: self._delivered.get(key, 0) + 1 for key in keys}
        return [paths[key] for key in keys]

    def _accepted(self, attempt: AttemptKey, token: str, paths: dict[PartitionKey, str]) -> Accepted:
        with RawSink(self._workspace.context.lake).writer(attempt) as writer:
            for row in self._content(attempt):
                writer.write_row(row)
            seal = writer.seal(self._workspace.context.now(), "v1", "bench", "bench", "UTC")
        paths[attempt.partition] = f"{run_folder(attempt)}/{seal.payload}"
        facts = (seal.record_count, seal.payload_sha256, seal.payload_bytes, seal.payload_sha256)
        return Accepted(attempt, token, "v1", *facts)

    def _content(self, attempt: AttemptKey) -> list[dict[str, Any]]:
        """Numbers that do not compress well, the same on every machine."""
        seed = int(attempt.partition.customer_id) * 100_000 + attempt.partition.logical_date.toordinal()
        random = np.random.default_rng(seed).integers(0, 1_000_000, (self._rows, 2)).tolist()
        return [
            {
                "campaign_id": number,
                "campaign_name": f"campaign {number}",
                "impressions": impressions,
                "clicks": self._number,
                "cost_micros": cost,
                "conversions": cost / 8,
            }
            for number, (impressions, cost) in enumerate(random)
        ]


def publish(workspace: Workspace, spark: Any) -> Publication:
    """Publish due partitions, without the full comparison and without projections: the load stage of a run."""
    with Heartbeat(WorkerStore(workspace.context.database, workspace.context.now)) as heart:
        done = workspace.publications.publisher(spark, heart.token, None).publish()
    if done.broken:
        raise SystemExit(f"{len(done.broken)} slices could not be published: {next(iter(done.broken.values()))}")
    return done


def keys_of(customers: Sequence[str], dates: Sequence[Any]) -> list[PartitionKey]:
    return [PartitionKey("demo", customer, QUERY, day) for day in dates for customer in customers]

"""Validates and publishes delivered partitions as a worker does, and prints the memory that it used."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

from penstock.contract.content import content_digest
from penstock.contract.evaluation import row_rules, unique_checks
from penstock.partition import AttemptKey
from penstock.pipeline.parse_slices import SliceParser
from penstock.pipeline.slice_summary import summariser
from penstock.pipeline.validate import ToValidate, _item_table
from support.harness import Harness
from support.workspaces import key


def examine(house: Harness) -> str:
    """The digest of the rows, by the functions that Spark's workers run."""
    contract = house.workspace.context.contracts["campaign_daily"]
    [attempt, *_] = house.workspace.context.state.attempts(key())
    item = ToValidate(AttemptKey(key(), attempt.run_id), attempt.payload_bytes or 0, None)
    add_up = summariser(len(row_rules(contract)), [check.fields for check in unique_checks(contract)])
    batches = iter(_item_table([item]).to_batches())
    [found] = pa.Table.from_batches(
        add_up(SliceParser(house.workspace.context.lake.url, contract)(batches))
    ).to_pylist()
    return content_digest(contract.schema_version, found["rows"], found["hash_xor"], found["hash_sum"] % 2**64)


def peak() -> int:
    """Megabytes since the start of this program, as the kernel counts them; getrusage includes the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def main(folder: str) -> None:
    house = Harness(Path(folder))
    started = peak()
    digest = examine(house)
    examined = peak()
    loaded = house.publish().loaded
    print(json.dumps({"digest": digest, "loaded": loaded, "started": started, "examined": examined, "peak": peak()}))


if __name__ == "__main__":
    main(sys.argv[1])

"""The header of a slice from a worker, without Spark: its seal compared with its contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.lake import open_lake
from penstock.partition import AttemptKey, new_run_id
from penstock.pipeline import slices as sizes
from penstock.pipeline.parse_slices import SliceParser
from penstock.raw.sink import RawSink
from support.builders import NOW, contract, key


def headers(folder: Path, sealed_as: str) -> list[dict[str, Any]]:
    """The complaints about a slice of two rows that was extracted under a schema version."""
    attempt = AttemptKey(key(), new_run_id())
    writer = RawSink(open_lake(str(folder))).writer(attempt)
    for number in (1, 2):
        writer.write(orjson.dumps({"campaign_id": number, "clicks": 1}))
    seal = writer.seal(NOW, sealed_as, "1", "q", "UTC")
    items = {
        "item": [0],
        "customer_id": [key().customer_id],
        "logical_date": [key().logical_date],
        "run_id": [attempt.run_id],
        "payload_bytes": [seal.payload_bytes],
    }
    answers = pa.Table.from_batches(SliceParser(str(folder), contract())(iter([pa.record_batch(items)])))
    said = [text for text in answers.column("_header").to_pylist() if text is not None]
    return [orjson.loads(text) for text in said]


@pytest.mark.parametrize("large", [False, True], ids=["read together", "streamed"])
def test_a_slice_of_another_schema_version_than_its_contract_is_complained_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(sizes, "LARGE_BYTES", 1)
    [fine] = headers(tmp_path, "v1")
    assert (fine["count"], fine["complaints"]) == (2, [])
    [wrong] = headers(tmp_path, "v2")
    [complaint] = wrong["complaints"]
    assert complaint["check"] == "schema_version"
    assert "v2" in complaint["message"]
    assert "v1" in complaint["message"]

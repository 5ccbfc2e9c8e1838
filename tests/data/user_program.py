"""A program as a user writes it. A test type-checks it with mypy --strict; it is never executed."""

from typing import assert_type

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import PartitionKey, PenstockError, Selection


def report(spark: SparkSession) -> None:
    ws = penstock.open("my-workspace")
    assert_type(ws.read("demo.campaign_daily", since="2024-06-01", spark=spark), DataFrame)
    assert_type(ws.read("demo.campaign_daily", customer="1000000001").arrow(), pa.Table)
    print(ws.read("demo.campaign_daily", customers=["1000000001"]).pandas())
    assert_type(ws.ready("demo.campaign_daily", date="2024-06-01", require="95%"), bool)
    print(ws.partition("demo/1000000001/campaign_daily/2024-06-01").why())


def operate(ws: penstock.Workspace) -> int:
    failed = Selection(customers=["1000000001"], since="2024-06-01", status="failed")
    try:
        moved = ws.operations.retry(failed, actor="kim", reason="source fixed")
        summary = ws.runs.start(failed, actor="kim")
    except PenstockError as error:
        print(error)
        raise
    assert_type(summary.accepted, int)
    ws.operations.demote(PartitionKey.parse("demo/1000000001/campaign_daily/2024-06-01"), reason="wrong currency")
    return moved


def consume() -> pa.RecordBatchReader:
    with_no_changes = penstock.reader("my-workspace")
    return with_no_changes.sql("SELECT sum(clicks) FROM demo.campaign_daily")

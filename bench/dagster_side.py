"""The same queries in Dagster, in a separate environment: `python dagster_side.py PARTITIONS`."""

from __future__ import annotations

import json
import sys
import tempfile
from time import perf_counter

import dagster as dg
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value

wanted = int(sys.argv[1])
days = min(100, wanted)
customers = dg.StaticPartitionsDefinition([str(n) for n in range(wanted // days)])
dates = dg.StaticPartitionsDefinition([f"2024-{1 + n // 28:02d}-{1 + n % 28:02d}" for n in range(days)])
partitions = dg.MultiPartitionsDefinition({"customer": customers, "date": dates})


@dg.asset(partitions_def=partitions)  # type: ignore[untyped-decorator]
def campaign_daily() -> None: ...


with tempfile.TemporaryDirectory(prefix="penstock-bench-dagster-") as folder:
    instance = dg.DagsterInstance.local_temp(folder)
    key = dg.AssetKey("campaign_daily")
    started = perf_counter()
    for partition in partitions.get_partition_keys():
        instance.report_runless_asset_event(dg.AssetMaterialization(asset_key=key, partition=partition))
    written = perf_counter() - started
    started = perf_counter()
    found = instance.get_materialized_partitions(key)
    listed = perf_counter() - started
    if len(found) != wanted // days * days:
        raise SystemExit(f"{len(found)} partitions are materialized, not {wanted}")
    started = perf_counter()
    value = get_and_update_asset_status_cache_value(instance, key, partitions)
    counted = perf_counter() - started
    facts = {"partitions": len(found), "dagster": dg.__version__, "events_written": written}
    print(json.dumps({**facts, "materialized_partitions": listed, "status_cache": counted, "cache": value is not None}))

"""Every kind of order, placed over HTTP and executed by a real control loop on real data."""

from __future__ import annotations

import html
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import yaml

from penstock.client import Client
from support.api_process import ServerProcess, api_server, started
from support.cli import answer, penstock
from support.workspaces import customer_id, write_workspace

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
TABLE, LARGE = "demo.campaign_daily", "bulk.bulk_daily"
ROWS = 150_000  # of a partition whose file is larger than those that a publication merges into its own


def key(number: int, table: str = TABLE) -> str:
    source, _, query = table.partition(".")
    return f"{source}/{customer_id(number)}/{query}/{YESTERDAY}"


def write(folder: Path, **query: Any) -> Path:
    """Three customers with yesterday's partition of two tables each. In the second table, the first customer has far
    more rows than the others. Small runs need no Spark; all other orders do. The loop has no rounds between orders."""
    settings = {"start_date": YESTERDAY.isoformat(), **query}
    write_workspace(folder, customers=3, query=settings, driver_partitions=32, control={"every": "1h"})
    file = folder / "penstock.yaml"
    body = yaml.safe_load(file.read_text())
    few = [{"fault": "fewer_rows", "customer": customer_id(number)} for number in (2, 3)]
    body["sources"]["bulk"] = {"kind": "demo", "seed": 7, "rows": ROWS, "faults": few}
    body["queries"]["bulk_daily"] = {**body["queries"]["campaign_daily"], "source": "bulk", "checks": []}
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    return folder


def page_text(server: ServerProcess, path: str) -> str:
    """The text of a page, as a person reads it."""
    response = httpx.get(server.url + path)
    assert response.status_code == 200, response.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


def await_round(loop: ServerProcess) -> None:
    """Wait until the loop waits for orders: the round after its last order has ended."""
    deadline = time.monotonic() + 120
    while (found := re.findall(r"order\.executed|round\.finished", loop.log))[-1:] != ["round.finished"]:
        assert time.monotonic() < deadline, (found, loop.log)
        time.sleep(0.1)


def files(folder: Path, table: str) -> set[str]:
    """The data files of the present version of a table, as another reader of Delta tables sees them."""
    from deltalake import DeltaTable

    [place] = (folder / "lake" / "warehouse").glob(f"{table.replace('.', '/')}/*")
    return set(DeltaTable(place).file_uris())


def test_a_loop_executes_every_kind_of_order_and_the_page_shows_its_result(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    for numbers in ((1,), (2, 3)):  # two publications
        found = penstock("run", *(key(number, LARGE) for number in numbers), workspace=folder)
        assert found.returncode == 0, found.stderr
    killed = penstock("run", "--query", "campaign_daily", workspace=folder, PENSTOCK_FAILPOINT="run.judged")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [run] = [found for found in answer("runs", "list", workspace=folder)["items"] if found["finished_at"] is None]
    [row, *_] = answer("raw", "read", key(2), workspace=folder)["items"]
    write(folder, checks=[{"expression": f"cost_micros <> {row['cost_micros']}"}])  # only the second customer has it

    with api_server(folder) as server, Client(server.url) as client, started(folder, "control", "serve") as loop:

        def executed(order: dict[str, Any]) -> dict[str, Any]:
            done = client.wait_for_order(order["order_id"], patience=240, every=0.2)
            assert (done["state"], done["error"]) == ("succeeded", None), loop.log
            shown = page_text(server, f"/runs/orders/{order['order_id']}")
            assert "succeeded" in shown
            assert f"work {order['kind']}" in shown
            result: dict[str, Any] = done["result"]
            await_round(loop)
            return result

        resumed = executed(client.order("resume", run_id=run["run_id"]))
        assert resumed["run_id"] == run["run_id"]
        assert len(client.rows(TABLE, limit=100)) == 15

        plan = client.preview("validate", {"keys": [key(1), key(2)]}, reason="new contract")
        placed = client.apply(plan["token"])["result"]
        checked = executed(client.show_order(placed["order_id"]))
        assert (checked["examined"], checked["demoted"]) == (2, [key(2)])
        assert client.partition(key(2))["display_status"] == "unavailable"

        plan = client.preview("demote", {"keys": [key(3, LARGE)]}, reason="wrong currency")
        client.apply(plan["token"])
        before = files(folder, LARGE)
        assert executed(client.order("reconcile")) == {"loaded": 0, "hidden": 1}
        assert len(files(folder, LARGE) - before) == 1  # the file without the rows of the demoted partition
        pointers = {found["key"]: found for found in answer("warehouse", "pointers", workspace=folder)["items"]}
        assert [pointers[one]["available"] for one in (key(2), key(3, LARGE))] == [False, False]

        again = executed(client.order_run({"keys": [key(3)]}, reprocess=True))
        assert again["counts"]["accepted"] == 1

        before = files(folder, LARGE)
        [compacted] = executed(client.order("compact", tables=[LARGE]))["tables"]
        assert (compacted["files_before"], compacted["files_after"]) == (len(before), 1) == (2, 1)
        after = files(folder, LARGE)
        assert len(after) == 1
        assert not after & before
        assert loop.stop() == 0
    for table, rows in ((TABLE, 10), (LARGE, ROWS + ROWS // 5)):
        assert answer("sql", f"SELECT COUNT(*) AS n FROM {table}", workspace=folder)["items"] == [{"n": rows}]
    acts = [entry["command"] for entry in answer("audit", "list", workspace=folder)["items"]]
    assert {"validate", "runs resume", "warehouse reconcile", "warehouse compact"} <= set(acts), acts

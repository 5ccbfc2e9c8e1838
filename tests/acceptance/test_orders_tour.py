"""Every kind of order, placed over HTTP and executed by a real control loop on real data."""

from __future__ import annotations

import html
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from penstock.client import Client
from support.api_process import ServerProcess, api_server, started
from support.cli import answer, penstock
from support.workspaces import customer_id, write_workspace

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
TABLE = "demo.campaign_daily"


def key(number: int) -> str:
    return f"demo/{customer_id(number)}/campaign_daily/{YESTERDAY}"


def write(folder: Path, **query: Any) -> Path:
    """Three customers with yesterday's partition each. Small runs need no Spark; all other orders do."""
    settings = {"start_date": YESTERDAY.isoformat(), **query}
    return write_workspace(folder, customers=3, query=settings, driver_partitions=32)


def page_text(server: ServerProcess, path: str) -> str:
    """The text of a page, as a person reads it."""
    response = httpx.get(server.url + path)
    assert response.status_code == 200, response.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


def test_a_loop_executes_every_kind_of_order_and_the_page_shows_its_result(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    killed = penstock("run", workspace=folder, PENSTOCK_FAILPOINT="run.judged")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [run] = answer("runs", "list", workspace=folder)["items"]
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
            return result

        resumed = executed(client.order("resume", run_id=run["run_id"]))
        assert resumed["run_id"] == run["run_id"]
        assert len(client.rows(TABLE, limit=100)) == 15

        plan = client.preview("validate", {"keys": [key(1), key(2)]}, reason="new contract")
        placed = client.apply(plan["token"])["result"]
        checked = executed(client.show_order(placed["order_id"]))
        assert (checked["examined"], checked["demoted"]) == (2, [key(2)])
        assert client.partition(key(2))["display_status"] == "unavailable"

        assert executed(client.order("reconcile"))["hidden"] in (0, 1)  # a round of the loop may be first
        [pointer] = [p for p in answer("warehouse", "pointers", workspace=folder)["items"] if p["key"] == key(2)]
        assert pointer["available"] is False

        again = executed(client.order_run({"keys": [key(3)]}, reprocess=True))
        assert again["counts"]["accepted"] == 1
        compacted = executed(client.order("compact", tables=[TABLE]))
        assert [table["table"].startswith("demo") for table in compacted["tables"]] == [True]
        assert len(client.rows(TABLE, limit=100)) == 10
        assert loop.stop() == 0
    acts = [entry["command"] for entry in answer("audit", "list", workspace=folder)["items"]]
    assert {"validate", "runs resume", "warehouse reconcile", "warehouse compact"} <= set(acts), acts

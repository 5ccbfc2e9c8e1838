"""The lineage events of runs: inputs and outputs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from penstock.app import Workspace
from support import lineage_schema
from support.cli import answer, penstock
from support.workspaces import customer_id, open_at, run, write_workspace

SPEND = "SELECT logical_date, sum(cost_micros) AS cost FROM demo.campaign_daily GROUP BY ALL"
FAULTS = [{"fault": "wrong_type", "customer": customer_id(1), "date": "2024-06-10"}]


def workspace(folder: Path, lineage: dict[str, Any]) -> Workspace:
    models = {"spend": {"code": SPEND, "depends_on": ["demo.campaign_daily"], "require": "any"}}
    write_workspace(folder, customers=2, faults=FAULTS, models=models)
    body = yaml.safe_load((folder / "penstock.yaml").read_text())
    (folder / "penstock.yaml").write_text(yaml.safe_dump({**body, "lineage": lineage}))
    return open_at(folder)


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_emits_one_event_for_each_asset(tmp_path: Path, spark: Any) -> None:
    ws = workspace(tmp_path, {"file": "lineage.jsonl"})
    summary = run(ws, spark)
    found = {event["job"]["name"]: event for event in events(tmp_path / "lineage.jsonl")}
    assert set(found) == {"demo.campaign_daily", "models.spend"}
    fetched, made = found["demo.campaign_daily"], found["models.spend"]
    namespace = "penstock://acme/ads"

    assert {event["eventType"] for event in found.values()} == {"COMPLETE"}
    assert [(one["namespace"], one["name"]) for one in fetched["inputs"]] == [
        (f"{namespace}/source/demo", "campaign_daily")
    ]
    [written] = fetched["outputs"]
    assert (written["namespace"], written["name"]) == (namespace, "demo.campaign_daily")
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 15
    assert [field["name"] for field in written["facets"]["schema"]["fields"]][:2] == ["campaign_id", "campaign_name"]
    [place] = written["facets"]["symlinks"]["identifiers"]
    assert place["namespace"] == "file"
    assert (Path(place["name"]) / "_delta_log").is_dir()
    assert "1 of 4 partitions were rejected" in fetched["run"]["facets"]["errorMessage"]["message"]
    assert fetched["run"]["facets"]["nominalTime"]["nominalStartTime"].startswith("2024-06-09")

    # The output of one is the input of the other, and both belong to one run.
    assert [(one["namespace"], one["name"]) for one in made["inputs"]] == [(namespace, "demo.campaign_daily")]
    assert made["job"]["facets"]["sql"]["query"] == SPEND
    parents = {event["run"]["facets"]["parent"]["run"]["runId"] for event in found.values()}
    assert len(parents) == 1

    # Telling it again is telling the same.
    again = answer("lineage", "emit", summary.run_id, workspace=tmp_path)
    assert again["events"] == 2
    told = events(tmp_path / "lineage.jsonl")
    assert [event["run"]["runId"] for event in told[2:]] == [event["run"]["runId"] for event in told[:2]]
    for event in told:
        lineage_schema.validate(event)


def test_what_is_not_lineage_is_refused_by_the_schema_that_events_are_held_to(tmp_path: Path, spark: Any) -> None:
    run(workspace(tmp_path, {"file": "lineage.jsonl"}), spark)
    [event] = [one for one in events(tmp_path / "lineage.jsonl") if one["job"]["name"] == "models.spend"]

    def spoil(*way: Any, value: Any) -> None:
        broken = json.loads(json.dumps(event))
        held = broken
        for step in way[:-1]:
            held = held[step]
        held[way[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            lineage_schema.validate(broken)

    spoil("eventTime", value="yesterday")
    spoil("eventType", value="DONE")
    spoil("run", "runId", value="01J")
    spoil("job", "title", value="spend")
    spoil("job", "facets", "sql", "query", value=None)
    spoil("job", "facets", "sql", "_schemaURL", value="https://example.org/facet.json")
    spoil("run", "facets", "parent", "job", value={"name": "run"})
    spoil("outputs", 0, "outputFacets", "outputStatistics", "rowCount", value="2")
    spoil("outputs", 0, "facets", "schema", "fields", 0, value={"type": "long"})


class Receiver(BaseHTTPRequestHandler):
    received: list[tuple[str, str | None, dict[str, Any]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers.get("Authorization"), json.loads(body)))
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has in the library
        """The log of the server is not needed."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[Any]]]:
    handler = type("Handler", (Receiver,), {"received": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.received  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_events_go_to_a_service_with_its_key(tmp_path: Path, spark: Any, receiver: tuple[str, list[Any]]) -> None:
    url, received = receiver
    run(workspace(tmp_path, {"url": url, "api_key": "sesame"}), spark)
    assert [(path, key) for path, key, _ in received] == [("/api/v1/lineage", "Bearer sesame")] * 2
    assert {event["job"]["name"] for _, _, event in received} == {"demo.campaign_daily", "models.spend"}
    for _, _, event in received:
        lineage_schema.validate(event)


def test_an_unreachable_lineage_service_fails_no_run_and_gets_the_events_later(tmp_path: Path, spark: Any) -> None:
    ws = workspace(tmp_path, {"url": "http://127.0.0.1:9", "api_key": "sesame", "timeout": "1s"})
    summary = run(ws, spark)
    assert summary.end == "done"
    refused = penstock("lineage", "emit", summary.run_id, workspace=tmp_path)
    assert refused.returncode == 75
    assert "could not be sent to http://127.0.0.1:9" in refused.stderr
    assert "sesame" not in refused.stderr


def test_without_an_endpoint_no_lineage_is_emitted(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path))
    summary = run(ws, spark)
    refused = penstock("lineage", "emit", summary.run_id, workspace=tmp_path)
    assert refused.returncode == 2
    assert "lineage: {file: lineage.jsonl}" in refused.stderr

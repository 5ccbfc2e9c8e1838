"""The OpenLineage events of a run, built from facts. No Spark, no service."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ulid import ULID

from penstock.config.loading import load_settings
from penstock.config.settings import LineageSettings, Settings
from penstock.contract.contract import Contract
from penstock.errors import TransientError
from penstock.observe.lineage import emit, run_events
from penstock.source.registry import hooks_of
from penstock.state.assets import AssetRun
from penstock.warehouse.heads import TableHead
from support import lineage_schema
from support.builders import NOW, contract
from support.workspaces import write_workspace

RUN = "01J00000000000000000000001"
FETCHED = contract()
MADE = replace(
    FETCHED, source="models", query_name="spend", options={"depends_on": ["demo.a", "models.b"], "code": "SELECT 1",
                                                          "language": "sql"}
)  # fmt: skip
SPACE = "penstock://acme/ads"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(write_workspace(tmp_path_factory.mktemp("lineage")) / "penstock.yaml", {}, hooks_of)


def asset(of: Contract = FETCHED, **changes: Any) -> AssetRun:
    made = AssetRun(of.source, of.query_name, "v1", of.fingerprint, 3, 0, 0, 30, 600, date(2024, 6, 1),
                    date(2024, 6, 3), NOW, NOW + timedelta(hours=1), None)  # fmt: skip
    return replace(made, **changes)


def told(
    settings: Settings,
    one: AssetRun,
    of: Contract = FETCHED,
    heads: dict[str, TableHead] | None = None,
    lake: str = "/lake",
) -> dict[str, Any]:
    """The event as it is written."""
    from openlineage.client.serde import Serde

    [event] = run_events(settings, RUN, [one], {of.fingerprint: of}, heads or {}, lake)
    found: dict[str, Any] = json.loads(Serde.to_json(event))
    return found


@pytest.mark.parametrize(
    ("accepted", "rejected", "kind"), [(3, 0, "COMPLETE"), (2, 1, "COMPLETE"), (0, 1, "FAIL"), (0, 0, "ABORT")]
)
def test_a_run_is_complete_failed_or_aborted(settings: Settings, accepted: int, rejected: int, kind: str) -> None:
    event = told(settings, asset(accepted=accepted, rejected=rejected, error="clicks is negative"))
    assert event["eventType"] == kind
    assert bool(event["outputs"]) == bool(accepted)
    message = event["run"]["facets"].get("errorMessage", {}).get("message")
    expected = f"{rejected} of {rejected + accepted} partitions were rejected, for example: clicks is negative"
    assert message == (expected if rejected else None)


def test_an_event_names_its_run_its_days_and_its_end(settings: Settings) -> None:
    event = told(settings, asset())
    assert event["eventTime"].startswith("2024-07-01T13:00")
    assert told(settings, asset(ended_at=None))["eventTime"].startswith("2024-07-01T12:00")
    parent = event["run"]["facets"]["parent"]
    assert parent["run"]["runId"] == str(UUID(bytes=ULID.from_str(RUN).bytes))
    assert (parent["job"]["namespace"], parent["job"]["name"]) == (SPACE, "run")
    times = event["run"]["facets"]["nominalTime"]
    assert times["nominalStartTime"].startswith("2024-06-01T00:00")
    assert times["nominalEndTime"].startswith("2024-06-04T00:00")
    assert told(settings, asset())["run"]["runId"] == event["run"]["runId"], "told again, it is the same run"
    assert told(settings, asset(schema_version="v2"))["run"]["runId"] != event["run"]["runId"]


def test_a_query_reads_its_source_and_a_model_its_tables(settings: Settings) -> None:
    fetched, made = told(settings, asset()), told(settings, asset(MADE), MADE)
    assert [(i["namespace"], i["name"]) for i in fetched["inputs"]] == [(f"{SPACE}/source/demo", "campaign_daily")]
    assert [(i["namespace"], i["name"]) for i in made["inputs"]] == [(SPACE, "demo.a"), (SPACE, "models.b")]
    assert fetched["job"]["facets"]["jobType"]["jobType"] == "QUERY"
    assert made["job"]["facets"]["jobType"]["jobType"] == "MODEL"
    assert made["job"]["facets"]["sql"]["query"] == "SELECT 1"
    assert set(fetched["job"]["facets"]) == {"jobType"}
    python = replace(MADE, options={**MADE.options, "language": "python", "code": "def model(): ..."})
    facets = told(settings, asset(python), python)["job"]["facets"]
    assert facets["sourceCode"]["sourceCode"] == "def model(): ..."
    assert "sql" not in facets


def told_columns(settings: Settings, code: str) -> dict[str, Any]:
    """The facets of the output of a model on `demo.campaign_daily`."""
    from openlineage.client.serde import Serde

    options = {"depends_on": ["demo.campaign_daily"], "code": code, "language": "sql"}
    model = replace(FETCHED, source="models", query_name="spend", options=options)
    kept = {one.fingerprint: one for one in (FETCHED, model)}
    [event] = run_events(settings, RUN, [asset(model)], kept, {}, "/lake")
    found: dict[str, Any] = json.loads(Serde.to_json(event))
    lineage_schema.validate(found)
    facets: dict[str, Any] = found["outputs"][0]["facets"]
    return facets


def test_the_columns_of_a_sql_model_name_their_input_columns(settings: Settings) -> None:
    code = """SELECT logical_date, campaign_id, sum(clicks) AS clicks FROM demo.campaign_daily
              JOIN penstock.partitions USING (logical_date) WHERE clicks > 0 GROUP BY ALL"""
    facet = told_columns(settings, code)["columnLineage"]

    def used(column: str, *uses: tuple[str, str]) -> dict[str, Any]:
        how = [{"type": kind, "subtype": name, "description": "", "masking": False} for kind, name in uses]
        return {"namespace": SPACE, "name": "demo.campaign_daily", "field": column, "transformations": how}

    assert facet["fields"] == {
        "campaign_id": {"inputFields": [used("campaign_id", ("DIRECT", "IDENTITY"))]},
        "clicks": {"inputFields": [used("clicks", ("DIRECT", "AGGREGATION"))]},
    }
    assert facet["dataset"] == [
        used("campaign_id", ("INDIRECT", "GROUP_BY")),
        used("clicks", ("INDIRECT", "FILTER")),
        used("logical_date", ("INDIRECT", "GROUP_BY"), ("INDIRECT", "JOIN")),
    ]


def test_columns_that_the_sql_does_not_show_are_left_out_and_logged(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    assert "columnLineage" not in told_columns(settings, "SELECT * FROM demo.other")
    [record] = [found for found in caplog.records if found.message == "lineage.columns_unknown"]
    assert (record.__dict__["facts"]["model"], record.__dict__["facts"]["run_id"]) == ("spend", RUN)
    assert "columnLineage" not in told(settings, asset())["outputs"][0]["facets"], "a query has no SQL of ours"


@pytest.mark.parametrize(
    ("lake", "place"),
    [
        ("/lake", ("file", "/lake/warehouse/t")),
        ("/lake/", ("file", "/lake/warehouse/t")),
        ("s3://bucket", ("s3://bucket", "warehouse/t")),
        ("s3://bucket/some/prefix", ("s3://bucket", "some/prefix/warehouse/t")),
    ],
)
def test_what_was_written_is_named_with_its_table_and_version(
    settings: Settings, lake: str, place: tuple[str, str]
) -> None:
    head = TableHead(FETCHED.table, "v1", "warehouse/t", 7, frozenset())
    [written] = told(settings, asset(), heads={FETCHED.table: head}, lake=lake)["outputs"]
    assert (written["namespace"], written["name"]) == (SPACE, "demo.campaign_daily")
    assert [field["name"] for field in written["facets"]["schema"]["fields"]] == ["campaign_id", "clicks"]
    assert written["facets"]["version"]["datasetVersion"] == "7"
    [link] = written["facets"]["symlinks"]["identifiers"]
    assert (link["namespace"], link["name"]) == place
    statistics = written["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (30, 600)
    [other] = told(settings, asset())["outputs"]
    assert set(other["facets"]) == {"schema"}, "no table yet"


def test_events_are_added_to_a_file(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    events = run_events(settings, RUN, [asset()], {FETCHED.fingerprint: FETCHED}, {}, "/lake")
    for _ in range(2):
        emit(LineageSettings(file=str(file)), events)
    assert [json.loads(line)["eventType"] for line in file.read_text().splitlines()] == ["COMPLETE", "COMPLETE"]
    with pytest.raises(TransientError, match="could not be sent"):
        emit(LineageSettings(file=str(tmp_path / "nowhere" / "lineage.jsonl")), events)

"""Contracts survive export to the Open Data Contract Standard and import from it."""

from __future__ import annotations

import json
from datetime import date, time, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from open_data_contract_standard.model import OpenDataContractStandard

from penstock.config.assets import Query, Restate, query_to_mapping
from penstock.config.checks import Field, check_from_mapping
from penstock.config.freshness import Freshness
from penstock.contract.contract import Contract
from penstock.contract.documents import as_yaml, checked_query, dumped, queries_in
from penstock.contract.odcs import from_odcs, to_odcs
from penstock.errors import ConfigError
from penstock.source.registry import hooks_of
from support.strategies import kinds

CHECKS: list[dict[str, Any]] = [
    {"unique": ["id", "day"]},
    {"required": ["label", "day"], "severity": "warn"},
    {"expression": "id > 0", "name": "positive"},
    {"range": {"field": "id", "min": 0, "max": 10}},
    {"allowed": {"field": "label", "values": ["a", "b"]}, "name": "labels"},
    {"rows": {"min": 1}},
    {"rows": {"max": 9}},
    {"rows": {"min": 1, "max": 9}},
    {"rows": {"min": 3, "max": 3}},
    {"shrink": {"max_drop": 0.5}, "severity": "warn"},
    {"not_null_share": {"field": "label", "min": 0.9}},
    {"freshness": {"field": "at", "max_lag": "90m"}},
    {"references": {"fields": ["id"], "to": "demo.other", "to_fields": ["x"]}},
    {"compare": {"field": "id", "function": "sum", "max_change": 0.5}},
]
FIELDS = (
    Field(name="id", type="long", required=True),
    Field(name="label", type="string", default="a"),
    Field(name="day", type="date"),
    Field(name="at", type="timestamp"),
)
STANDARD = json.loads(files("open_data_contract_standard").joinpath("schema.json").read_text())
LAGS = st.sampled_from([timedelta(seconds=90), timedelta(minutes=5), timedelta(hours=36), timedelta(days=3)])


_DEADLINES = st.fixed_dictionaries(
    {"complete_by": st.builds(time, st.integers(0, 23), st.integers(0, 59))},
    optional={
        "max_lag": LAGS,
        "time_zone": st.sampled_from(["UTC", "Europe/Berlin"]),
        "require": st.sampled_from(["all", "99%", "5"]),
        "complete_after_days": st.integers(1, 31),
    },
)
FRESHNESS = st.builds(lambda lag: Freshness(max_lag=lag), LAGS) | _DEADLINES.map(Freshness.model_validate)


@st.composite
def queries(draw: st.DrawFn) -> Query:
    more = draw(st.lists(kinds, max_size=3))
    chosen = draw(st.lists(st.sampled_from(CHECKS), max_size=6, unique_by=str))
    return Query(
        name="q",
        source="demo",
        schema_version=draw(st.sampled_from(["v1", "v2", "v1_0"])),
        start_date=draw(st.none() | st.just(date(2024, 6, 1))),
        fields=(*FIELDS, *(Field(name=f"f{n}", type=str(kind)) for n, kind in enumerate(more))),
        checks=tuple(check_from_mapping(check) for check in chosen),
        unknown_fields=draw(st.sampled_from(["reject", "ignore", "keep"])),
        missing_fields=draw(st.sampled_from(["reject", "ignore"])),
        freshness=draw(st.none() | FRESHNESS),
        restate=draw(st.none() | st.just(Restate(days=3, ages=(1, 2)))),
        options=draw(st.sampled_from([{}, {"gaql": "SELECT x", "deep": {"a": [1]}}])),
    )


@settings(max_examples=40, deadline=None)
@given(query=queries())
def test_a_query_survives_export_and_import(query: Query) -> None:
    assert checked_query("q", yaml.safe_load(dumped(query_to_mapping(query))), "test") == query
    assert Contract.from_body(Contract.of(query).body()) == Contract.of(query)
    document = yaml.safe_load(dumped(to_odcs(query)))
    jsonschema.validate(document, STANDARD)
    OpenDataContractStandard.model_validate(document)
    [(name, body)], notes = from_odcs(document)[0].items(), from_odcs(document)[1]
    assert (checked_query(name, body, "test"), notes) == (query, [])


FOREIGN = """
apiVersion: v3.0.2
kind: DataContract
id: 53581432-6c55-4ba2-a65f-72344a91553a
version: 1.0.0
status: active
schema:
  - name: orders
    physicalName: shop.orders
    properties:
      - {name: order_id, logicalType: string, physicalType: VARCHAR(36), primaryKey: true,
         primaryKeyPosition: 1, required: true}
      - {name: line, logicalType: integer, primaryKey: true, primaryKeyPosition: 2}
      - {name: amount, logicalType: number, logicalTypeOptions: {minimum: 0, maximum: 1000}}
      - name: status
        logicalType: string
        quality:
          - {type: library, metric: invalidValues, mustBe: 0, severity: warning,
             arguments: {validValues: [open, closed]}}
          - {type: library, rule: nullValues, mustBe: 0}
      - {name: email, logicalType: string, unique: true}
      - {name: at, logicalType: timestamp}
      - {name: items, logicalType: array, items: {logicalType: object, properties: [{name: sku, logicalType: string}]}}
      - {name: shape, logicalType: vector}
    quality:
      - {type: library, metric: rowCount, mustBeGreaterThan: 10, name: enough}
      - {type: sql, query: "SELECT COUNT(*) FROM orders", mustBe: 3, name: by sql}
      - {type: library, metric: duplicateValues, mustBeLessThan: 5, name: few doubles}
slaProperties:
  - {property: latency, value: 4, unit: h}
"""


def test_a_contract_of_others_becomes_a_query(tmp_path: Path) -> None:
    file = tmp_path / "orders.odcs.yaml"
    file.write_text(FOREIGN)
    [(name, query)], notes = queries_in(file, {}, hooks_of)[0].items(), queries_in(file, {}, hooks_of)[1]
    written = query_to_mapping(query)
    assert name == "orders"
    assert written == {
        "source": "shop",
        "schema_version": "v1_0_0",
        "fields": [
            {"name": "order_id", "type": "string", "required": True},
            {"name": "line", "type": "long"},
            {"name": "amount", "type": "double"},
            {"name": "status", "type": "string"},
            {"name": "email", "type": "string"},
            {"name": "at", "type": "timestamp"},
            {"name": "items", "type": "array<struct<sku: string>>"},
            {"name": "shape", "type": "string"},
        ],
        "checks": [
            {"unique": ["order_id", "line"]},
            {"range": {"field": "amount", "min": 0, "max": 1000}},
            {"allowed": {"field": "status", "values": ["open", "closed"]}, "severity": "warn"},
            {"required": ["status"]},
            {"unique": ["email"]},
            {"rows": {"min": 11}, "name": "enough"},
        ],
        "freshness": {"max_lag": "4h"},
    }
    assert [note.partition(":")[0] for note in notes] == ["orders.shape", "orders", "orders"]
    assert "'by sql' has no counterpart" in notes[1]
    assert as_yaml({name: written}, notes).startswith("# orders.shape: the type vector")


def test_a_document_without_a_valid_query_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("apiVersion: v3.0.2\nkind: DataContract\nid: x\nversion: 1.0.0\n")
    with pytest.raises(ConfigError, match="has no schema"):
        queries_in(file, {}, hooks_of)
    file.write_text(FOREIGN.replace("name: order_id", "name: OrderId"))
    with pytest.raises(ConfigError, match=r"bad.yaml: orders.fields.0.name: name 'OrderId' is not valid"):
        queries_in(file, {}, hooks_of)


def test_a_file_with_one_query_or_many_is_read(tmp_path: Path) -> None:
    alone = tmp_path / "Daily-Report.yaml"
    alone.write_text("fields:\n  - {name: a, type: long}\nchecks:\n  - unique: [a]\n")
    assert list(queries_in(alone, {}, hooks_of)[0]) == ["daily_report"]
    alone.write_text("fields:\n  - {name: a, type: lnog}\nchecks:\n  - unique: [b]\n")
    with pytest.raises(ConfigError) as refused:
        queries_in(alone, {}, hooks_of)
    assert str(refused.value).splitlines()[0].startswith("Daily-Report.yaml:2: fields[0].type: 'lnog' is not a type")
    assert "'b' is not a field" in str(refused.value)
    many = tmp_path / "many.yaml"
    many.write_text(
        "queries:\n  one: {fields: [{name: a, type: long}]}\n  two: {source: x, fields: [{name: a, type: long}]}\n"
    )
    assert {name: query.source for name, query in queries_in(many, {}, hooks_of)[0].items()} == {
        "one": "local",
        "two": "x",
    }

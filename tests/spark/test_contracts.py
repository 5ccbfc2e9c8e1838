"""Features of contracts, from raw rows to readers: nested types, defaults, kept fields, figures, references."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.config.checks import check_from_mapping
from penstock.contract.contract import Contract
from penstock.control.select import Selection
from penstock.errors import ErrorClass
from penstock.lifecycle import AttemptReason, Outcome
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.pipeline.references import Referenced
from penstock.pipeline.validate import ToValidate, Validated, validate
from penstock.raw.sink import RawSink
from penstock.state.records import Accepted, Planned
from support.harness import Harness
from support.workspaces import CAMPAIGNS, key, open_at, rows_by_partition, run, write_workspace

NESTED: list[dict[str, Any]] = [
    {"name": "id", "type": "long", "required": True},
    {"name": "tags", "type": "array<string>"},
    {"name": "geo", "type": "struct<zone: long, stops: array<struct<at: timestamp, day: date, price: decimal(10,2)>>>"},
    {"name": "country", "type": "string", "default": "DE"},
]


class Keeper(Harness):
    """A workspace whose query keeps unknown fields, and whose partitions are validated on Spark."""

    def __init__(self, folder: Path, **query: Any) -> None:
        super().__init__(folder, query={"fields": NESTED, "unknown_fields": "keep", **query})

    def send(self, spark: Any, slices: Mapping[PartitionKey, Sequence[Any]]) -> list[Validated]:
        """Receive these rows, validate them, and accept the valid ones."""
        token, run_id = self.workers.register(), new_run_id()
        contract = self.workspace.context.contracts["campaign_daily"]
        planned = [
            Planned(k, len(self.workspace.context.state.attempts(k)), AttemptReason.MISSING, contract.fingerprint, "v1")
            for k in slices
        ]
        issued, _ = self.control.issue(run_id, token, 0, planned)
        sizes = {item.attempt: self.receive(item.attempt, slices[item.attempt.partition]) for item in issued}
        items = [ToValidate(i.attempt, sizes[i.attempt], i.previous_record_count, i.previous_measures) for i in issued]
        found = validate(spark, self.workspace.settings.lake, contract, items)
        self.validator.judge(
            [
                Accepted(
                    f.attempt, token, "v1", f.record_count, str(f.payload_digest), sizes[f.attempt], f.content_digest
                )
                for f in found
                if f.is_acceptable
            ]
        )
        self.workers.stop(token)
        return found

    def receive(self, attempt: AttemptKey, rows: Sequence[Any]) -> int:
        writer = RawSink(self.workspace.context.lake).writer(attempt)
        for row in rows:
            writer.write(row if isinstance(row, bytes) else json.dumps(row).encode())
        return writer.seal(self.now(), "v1", "1", "q", "UTC").payload_bytes


ROWS: list[Any] = [
    {
        "id": 1,
        "tags": ["a", None],
        "geo": {"zone": 1, "stops": [{"at": "2024-06-01T10:00:00+02:00", "price": "1.5"}, None]},
    },
    {"id": 2, "tags": [], "geo": None, "country": None, "new": {"deep": [1.10, 2]}},
    b'{"id": 3, "geo": {"stops": [], "extra": 123456789012345678901234567890}, "country": "FR"}',
]
STOP = {"at": datetime(2024, 6, 1, 8, tzinfo=UTC), "day": None, "price": Decimal("1.50")}
READ: list[dict[str, Any]] = [
    {"id": 1, "tags": ["a", None], "geo": {"zone": 1, "stops": [STOP, None]}, "country": "DE", "_extra": None},
    {"id": 2, "tags": [], "geo": None, "country": None, "_extra": '{"new":{"deep":[1.1,2]}}'},
    {
        "id": 3,
        "tags": None,
        "geo": {"zone": None, "stops": []},
        "country": "FR",
        "_extra": '{"geo":{"extra":123456789012345678901234567890}}',
    },
]


def test_nested_values_defaults_and_kept_fields_reach_every_reader(tmp_path: Path, spark: Any) -> None:
    checks = [{"expression": "size(geo.stops) < 2", "name": "few"}, {"unique": ["id"]}, {"expression": "_extra is null",
              "name": "known", "severity": "warn"}]  # fmt: skip
    house = Keeper(tmp_path, checks=checks)
    [found, plain] = house.send(spark, {key(): ROWS, key(2): [{"id": 9, "country": "X"}]})
    assert [(c.check, c.count, c.line, c.severity) for c in found.complaints] == [
        ("few", 1, 1, "reject"),
        ("known", 2, 2, "warn"),
    ]
    assert plain.complaints == []

    house = Keeper(tmp_path / "other", checks=checks[1:])
    [found, _] = house.send(spark, {key(): ROWS, key(2): [{"id": 9, "country": "X"}]})
    assert [(c.check, c.severity) for c in found.complaints] == [("known", "warn")]
    assert house.publish().broken == {}
    ws = house.workspace
    verified = ws.maintenance.verify((), lambda share: None, raw=True)
    assert (verified.wrong, verified.rows) == ({}, 4)  # the table has the validated rows, digest by digest

    wanted = [*READ, {"id": 9, "tags": None, "geo": None, "country": "X", "_extra": None}]
    names = list(READ[0])
    vouched = ws.data.vouched("demo.campaign_daily")
    assert vouched.arrow().select(names).to_pylist() == wanted
    ordered = vouched.duckdb().project(", ".join(names)).order("id")
    assert ordered.to_arrow_table().to_pylist() == wanted
    frame = vouched.spark(spark).select(*names).orderBy("id")
    assert frame.toArrow().to_pylist() == wanted
    source = spark.read.format("penstock").option("workspace", str(tmp_path / "other"))
    again = source.option("table", "demo.campaign_daily").load().select(*names).orderBy("id")
    assert again.toArrow().to_pylist() == wanted
    [row] = (
        ws.sql("SELECT geo.stops[1].price AS p, _extra FROM demo.campaign_daily WHERE id = 1").read_all().to_pylist()
    )
    assert row == {"p": Decimal("1.50"), "_extra": None}


def test_each_slice_is_loaded_under_the_contract_it_was_accepted_under(tmp_path: Path, spark: Any) -> None:
    """Two contracts of one table may differ in a default; rows accepted under one must not be read under the other."""
    Keeper(tmp_path).send(spark, {key(1): [{"id": 1}]})
    french = [*NESTED[:3], {**NESTED[3], "default": "FR"}]
    house = Keeper(tmp_path, fields=french)
    house.send(spark, {key(2): [{"id": 2}], key(1, "2024-06-10"): [{"id": 3}]})
    assert house.publish().loaded == 3
    rows = {
        row["id"]: row["country"] for row in house.workspace.data.vouched("demo.campaign_daily").arrow().to_pylist()
    }
    assert rows == {1: "DE", 2: "FR", 3: "FR"}
    assert house.workspace.maintenance.verify((), lambda share: None, raw=False).wrong == {}


def test_the_demo_source_knows_nested_types_all_the_way(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, query={"fields": NESTED, "checks": []}))
    assert run(ws, spark).loaded == 2
    assert {type(row["geo"]) for rows in rows_by_partition(ws).values() for row in rows} == {dict}


def figures_of(spark: Any, folder: Path, checks: list[dict[str, Any]], rows: Sequence[Any]) -> list[Any]:
    fields = [{"name": "id", "type": "long"}, {"name": "share", "type": "double"}, {"name": "at", "type": "timestamp"},
              {"name": "price", "type": "decimal(10,2)"}, {"name": "label", "type": "string"}]  # fmt: skip
    [found] = Keeper(folder, fields=fields, checks=checks).send(spark, {key(): rows})
    return [(c.check, c.count, c.severity, c.message) for c in found.complaints]


@pytest.mark.parametrize("by_spark", [False, True])
def test_shares_and_freshness_are_judged_by_slice(tmp_path: Path, spark: Any, by_spark: bool) -> None:
    checks: list[dict[str, Any]] = [
        {"not_null_share": {"field": "label", "min": 0.5}},
        {"not_null_share": {"field": "share", "min": 0.9}, "severity": "warn"},
        {"freshness": {"field": "at", "max_lag": "2h"}},
        {"freshness": {"field": "at", "max_lag": "3h"}, "name": "not so strict"},
    ]
    checks += [{"expression": "id + 1 > 0"}] if by_spark else []
    rows: list[Any] = [
        {"id": 1, "share": 0.5, "label": "x", "at": "2024-06-09T21:30:00Z"},
        {"id": 2, "share": 0.5, "label": "y", "at": "2024-06-09T10:00:00Z"},
        {"id": 3, "label": None},
    ]
    assert figures_of(spark, tmp_path, checks, rows) == [
        ("not_null_share(share)", 1, "warn", "share has a value in 66.7% of 3 rows, at least 90.0% expected"),
        ("freshness(at)", 3, "reject",
         "the newest at is 2024-06-09 21:30:00 UTC, older than 2h at the end of 2024-06-09"),
    ]  # fmt: skip


def test_a_run_is_compared_with_the_one_that_is_trusted(tmp_path: Path, spark: Any) -> None:
    checks = [{"compare": {"field": "clicks", "function": "sum", "max_change": 0.5}},
              {"compare": {"function": "count", "max_change": 0.1}, "severity": "warn"}]  # fmt: skip
    folder = write_workspace(tmp_path, rows=10, query={"checks": checks})
    first = run(open_at(folder), spark, key())
    assert (first.accepted, first.warnings) == (1, 0)  # there was nothing to compare with
    less = [{"fault": "fewer_rows", "enabled": True}]
    ws = open_at(write_workspace(tmp_path, rows=10, faults=less, query={"checks": checks}))
    assert run(ws, spark, key(), reprocess=True).rejected == 1
    [held, trusted] = ws.context.state.attempts(key())
    assert [c["check"] for c in held.complaints or []] == ["compare(sum(clicks))", "compare(count(*))"]
    assert held.error_message is not None
    assert "count(*)" not in held.error_message  # a warning is no reason
    assert set(held.measures or {}) == set(trusted.measures or {}) == {"sum(clicks)", "count(*)"}

    ws.operations.approve(key(), held.run_id, reason="the account shrank", actor="ada")
    again = run(ws, spark, key(), reprocess=True)
    assert (again.accepted, again.warnings) == (1, 0)  # compared with the approved run
    ws.operations.rollback(key(), trusted.run_id, actor="ada")
    assert run(ws, spark, key(), reprocess=True).rejected == 1  # and with the run of the rollback
    ws.operations.demote(key(), reason="wrong", actor="ada")
    ws.operations.retry(Selection(keys=(key(),)), without_raw=True, actor="ada")
    assert run(ws, spark, key()).accepted == 1  # nothing is trusted, so there is nothing to compare with


NETWORKS: dict[str, Any] = {
    "source": "demo",
    "start_date": "2024-06-09",
    "fields": [{"name": "campaign_id", "type": "long"}, {"name": "network", "type": "string"}],
}


def referring(*checks: dict[str, Any]) -> dict[str, Any]:
    other = {**NETWORKS, "checks": list(checks)}
    return {"zz_networks": NETWORKS, "campaign_daily": other}


def test_values_are_looked_for_in_the_slice_of_the_same_customer_and_day(tmp_path: Path, spark: Any) -> None:
    """The referenced table comes last by name: it is loaded first nevertheless."""
    checks = [
        {"references": {"field": "network", "to": "demo.zz_networks"}, "name": "known"},
        {"references": {"fields": ["campaign_id", "network"], "to": "demo.zz_networks"}, "severity": "warn"},
    ]
    ws = open_at(write_workspace(tmp_path, customers=2, rows=40, queries=referring(*checks)))
    summary = run(ws, spark)
    assert (summary.accepted, summary.rejected, summary.warnings) == (8, 0, 4)
    [attempt] = ws.context.state.attempts(key())
    [warning] = attempt.complaints or []
    assert (warning["check"], warning["count"], warning["line"]) == ("references(campaign_id, network)", 40, 1)
    assert "is not in demo.zz_networks" in warning["message"]
    assert '"campaign_id"' in warning["example"]


def test_a_slice_that_refers_to_one_that_is_not_there_waits_for_it(tmp_path: Path, spark: Any) -> None:
    check = {"references": {"field": "network", "to": "demo.zz_networks"}}
    broken = [{"fault": "wrong_type", "query": "zz_networks", "date": "2024-06-09"}]
    ws = open_at(write_workspace(tmp_path, rows=40, faults=broken, queries=referring(check)))
    summary = run(ws, spark)
    assert (summary.accepted, summary.rejected) == (2, 2)
    [attempt] = ws.context.state.attempts(key())
    assert (attempt.outcome, attempt.error_class) == (Outcome.FAILED, ErrorClass.TRANSIENT)
    other = key(query="zz_networks")
    assert attempt.error_message == f"references(network) cannot be evaluated: {other} has no trusted run yet"
    view = ws.partitions.views([key()])[key()]
    assert view.control.next_run_at is not None  # it is tried again by itself
    ws = open_at(write_workspace(tmp_path, rows=40, queries=referring(check)))
    ws.operations.retry(
        Selection(
            keys=(
                other,
                key(),
            )
        ),
        without_raw=True,
        actor="ada",
    )
    assert run(ws, spark).accepted == 2


def test_one_read_of_the_other_table_serves_a_whole_batch(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=3, rows=40, queries=referring()))
    run(ws, spark)
    refers = check_from_mapping({"references": {"field": "network", "to": "demo.zz_networks"}})
    contract = Contract.of(ws.settings.query("campaign_daily").model_copy(update={"checks": (refers,)}))
    looked: list[Any] = []

    def look(table: str, first: date, last: date, customers: Sequence[str]) -> Referenced:
        looked.append((table, first, last, list(customers)))
        return ws.data.referenced(table, first, last, customers)

    trusted = [(k, s.current_run_id) for k in (key(n, d) for n in (1, 2, 3) for d in ("2024-06-09", "2024-06-10"))
               if (s := ws.context.state.state(k))]  # fmt: skip
    items = [ToValidate(AttemptKey(k, RunId(str(r))), 1000, None) for k, r in trusted]
    found = validate(spark, ws.settings.lake, contract, items, open_reference=look)
    assert [item.complaints for item in found] == [[]] * 6
    customers = sorted({item.attempt.partition.customer_id for item in found})
    assert looked == [("demo.zz_networks", date(2024, 6, 9), date(2024, 6, 10), customers)]


def test_warnings_never_stand_in_the_way(tmp_path: Path, spark: Any) -> None:
    checks = [{**check, "severity": "warn"} for check in (*CAMPAIGNS["checks"], {"expression": "clicks < 0"})]
    fault = [{"fault": "duplicate_key", "date": "2024-06-09"}]
    ws = open_at(write_workspace(tmp_path, faults=fault, query={"checks": checks}))
    summary = run(ws, spark)
    assert (summary.accepted, summary.rejected, summary.warnings, summary.failures) == (2, 0, 3, [])
    [attempt] = ws.context.state.attempts(key())
    assert attempt.outcome is Outcome.SUCCEEDED
    assert {warning["check"] for warning in attempt.warnings} == {"unique(campaign_id)", "expression(clicks < 0)"}
    assert [w["check"] for w in ws.partitions.why(key()).warnings] == [w["check"] for w in attempt.warnings]

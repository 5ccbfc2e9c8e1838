"""The demo source: the same seed gives the same rows, and faults affect only the configured partitions."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, SourceSettings
from penstock.errors import AuthFailed, ConfigError, QuotaExceeded, SourceUnavailable
from penstock.partition import RunId, new_run_id
from penstock.source.demo import DemoSource, Fault
from penstock.source.protocol import COMPLETE, RunContext
from penstock.source.registry import make_source

DAYS = [date(2024, 6, day) for day in (1, 2, 3)]
KINDS = ("long", "double", "string", "boolean", "date", "timestamp", "decimal(8,3)")
QUERY = Query(
    name="q",
    source="demo",
    start_date=DAYS[0],
    fields=(Field(name="campaign_id", type="long"), *(Field(name=f"f{n}", type=kind) for n, kind in enumerate(KINDS))),
)


def fetch(run: RunId | None = None, customer: str = "1", **options: Any) -> dict[date, list[Any]]:
    source = DemoSource({"rows": 10, **options}, RunContext(run or new_run_id()))
    found: dict[date, list[Any]] = {day: [] for day in DAYS}
    for day, row in source.extract(QUERY, Customer(id=customer), DAYS):
        if row is not COMPLETE:
            found[day].append(row)
    return found


def test_the_same_seed_gives_the_same_rows_in_every_run() -> None:
    assert fetch() == fetch()
    assert fetch(seed=1) != fetch(seed=2)
    assert fetch(customer="1") != fetch(customer="2")
    assert [len(rows) for rows in fetch().values()] == [10, 10, 10]


def test_failure_rate_breaks_the_same_share_of_slices_each_time() -> None:
    def broken(rate: float) -> set[tuple[int, date]]:
        sound = {n: fetch(customer=str(n)) for n in range(40)}
        return {
            (n, day)
            for n in range(40)
            for day, rows in fetch(customer=str(n), failure_rate=rate).items()
            if repr(rows) != repr(sound[n][day])
        }

    assert broken(0) == set()
    assert broken(0.2) == broken(0.2)
    assert 10 <= len(broken(0.2)) <= 40


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.CRASH])  # which ends the test run
def test_a_fault_affects_only_the_configured_partitions(fault: Fault) -> None:
    rule = {"fault": fault, "customer": "1", "date": DAYS[1].isoformat(), "seconds": 0}
    assert fetch(customer="2", faults=[rule]) == fetch(customer="2")
    assert fetch(faults=[{**rule, "enabled": False}]) == fetch()
    if fault in (Fault.QUOTA, Fault.AUTH):
        with pytest.raises(QuotaExceeded if fault is Fault.QUOTA else AuthFailed):
            fetch(faults=[rule])
        return
    found = fetch(faults=[rule])
    assert (found[DAYS[0]], found[DAYS[2]]) == (fetch()[DAYS[0]], fetch()[DAYS[2]])
    if fault is Fault.TRANSIENT:
        [error] = found[DAYS[1]]
        assert isinstance(error, SourceUnavailable)
    elif fault not in (Fault.SLOW, Fault.UNSTEADY):
        assert len(found[DAYS[1]]) != 10 or found[DAYS[1]] != fetch()[DAYS[1]]


def test_an_unsteady_slice_has_another_number_of_rows_on_each_fetch() -> None:
    rule = {"fault": "unsteady"}
    run = new_run_id()
    assert fetch(run, faults=[rule], rows=100) == fetch(run, faults=[rule], rows=100)
    assert len({len(fetch(faults=[rule], rows=100)[DAYS[0]]) for _ in range(8)}) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sed": 1}, "sed: extra inputs are not permitted"),
        ({"seed": "x"}, "seed:"),
        ({"failure_rate": 2}, "failure_rate:"),
        ({"faults": [{"fault": "fire"}]}, "faults.0.fault:"),
    ],
)
def test_bad_options_are_refused_with_the_name_of_the_source(options: dict[str, Any], message: str) -> None:
    settings = SourceSettings(name="shop", kind="demo", options=options)
    with pytest.raises(ConfigError) as refused:
        make_source(settings, RunContext(new_run_id()))
    assert str(refused.value).startswith("sources.shop: ")
    assert message in str(refused.value)


def test_an_unknown_kind_is_refused_with_the_installed_ones() -> None:
    with pytest.raises(ConfigError, match=r"no source of kind 'fax' \(installed: .*demo"):
        make_source(SourceSettings(name="shop", kind="fax", options={}), RunContext(new_run_id()))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no_such_module:Source", "kind 'no_such_module:Source' cannot be loaded: No module named 'no_such_module'"),
        ("penstock.source.demo:Source", "cannot be loaded: module 'penstock.source.demo' has no attribute 'Source'"),
    ],
)
def test_a_class_that_is_not_there_is_refused(kind: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_source(SourceSettings(name="shop", kind=kind, options={}), RunContext(new_run_id()))
    assert message in str(refused.value)


def test_a_kind_may_be_a_class() -> None:
    settings = SourceSettings(name="shop", kind="penstock.source.demo:DemoSource", options={"rows": 1})
    assert isinstance(make_source(settings, RunContext(new_run_id())), DemoSource)


def test_quota_errors_keep_their_delay_when_they_travel() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(QuotaExceeded("slow down", 30.0)))
    assert isinstance(error, QuotaExceeded)
    assert (error.retry_after, str(error)) == (30.0, "slow down (the source asks to wait 30 s)")

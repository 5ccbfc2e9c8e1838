"""Asset checks: the verdicts about a day and about a table, in real Dagster runs and from the sensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from penstock.client import Client

from conftest import Site
from penstock_dagster import build_penstock_checks, build_penstock_sensor, penstock_asset_specs
from penstock_dagster.outcomes import day_outcome
from servers import api_server, command, last_days, write_workspace
from ticks import Ticks

KEY = dg.AssetKey(["demo", "campaign_daily"])


def evaluations(
    site: Site, client: Client, instance: dg.DagsterInstance, day: str, **rules: Any
) -> dict[str, dg.AssetCheckEvaluation]:
    """The results of a Dagster run that executes both checks for a day, by the name of the check."""
    specs = penstock_asset_specs(client, tables=["demo.campaign_daily"])
    checks = build_penstock_checks(specs, **rules)
    job = dg.define_asset_job("checks", dg.AssetSelection.all_asset_checks())
    resources = {"penstock": site.resource}
    definitions = dg.Definitions(assets=specs, asset_checks=checks, jobs=[job], resources=resources)
    done = definitions.resolve_job_def("checks").execute_in_process(instance=instance, tags={"dagster/partition": day})
    assert done.success
    return {found.check_name: found for found in done.get_asset_check_evaluations()}


def test_the_check_fails_for_the_day_of_the_rejected_partition_only(
    site: Site, client: Client, instance: dg.DagsterInstance
) -> None:
    good = evaluations(site, client, instance, site.days[2])["penstock_verdicts_of_day"]
    assert (good.passed, good.partition, good.description) == (True, site.days[2], "0 of 2 partitions failed")

    bad = evaluations(site, client, instance, site.faulty_day)["penstock_verdicts_of_day"]
    assert (bad.passed, bad.partition, bad.severity) == (False, site.faulty_day, dg.AssetCheckSeverity.ERROR)
    assert bad.description is not None
    assert bad.description.startswith(f"1 of 2 partitions failed, for example {site.faulty_key}: campaign_id is not a")
    assert bad.metadata["example"].value == f"{site.url}/partitions/{site.faulty_key}"
    complaints: Any = bad.metadata["complaints"].value
    assert complaints[0]["count"] == 1


def test_the_check_of_the_table_names_the_failed_days(site: Site, client: Client, instance: dg.DagsterInstance) -> None:
    found = evaluations(site, client, instance, site.days[2])["penstock_verdicts"]
    assert (found.passed, found.partition, found.severity) == (False, None, dg.AssetCheckSeverity.ERROR)
    assert found.metadata["failed_days"].value == {site.faulty_day: 1}
    assert (found.description or "").startswith("1 of 6 partitions failed on 1 of 3 days, for example")

    last = evaluations(site, client, instance, site.days[2], last_days=1)["penstock_verdicts"]
    assert (last.passed, last.description) == (True, "0 of 2 partitions failed")


@pytest.mark.parametrize(("require", "passed"), [("all", False), ("50%", True), ("any", True)])
def test_a_rule_decides_by_the_published_partitions(
    site: Site, client: Client, instance: dg.DagsterInstance, require: str, passed: bool
) -> None:
    found = evaluations(site, client, instance, site.faulty_day, require=require)
    day, table = found["penstock_verdicts_of_day"], found["penstock_verdicts"]
    assert (day.passed, table.passed) == (passed, passed)
    assert (day.description or "").startswith(f"1 of 2 partitions are published, {require} required")
    assert table.metadata["days_not_ready"].value == ([] if passed else [site.faulty_day])


def test_the_sensor_reports_the_check_of_the_table_again_and_again(
    site: Site, client: Client, instance: dg.DagsterInstance
) -> None:
    """Also without a cursor: Dagster stores several results without a run, as long as they have no partition."""
    specs = penstock_asset_specs(client)
    ticks = Ticks(build_penstock_sensor(specs, build_penstock_checks(specs)), instance, site.resource)
    for _ in range(2):
        ticks.cursor = None
        [check] = [one for one in ticks.evaluate().checks if one.asset_key == KEY]
        assert (check.check_name, check.passed) == ("penstock_verdicts", False)
        assert check.metadata["failed_days"].value == {site.faulty_day: 1}


def test_a_failed_partition_that_has_rows_of_an_earlier_run_is_a_warning(tmp_path: Path) -> None:
    [day] = days = last_days(1)
    command(write_workspace(tmp_path, days, []), "run")
    faulty = write_workspace(tmp_path, days, [{"fault": "duplicate_key", "query": "campaign_daily"}], unique=True)
    command(faulty, "run", "--query", "campaign_daily", "--reprocess", code=1)
    with api_server(faulty) as url, Client(url) as client, dg.DagsterInstance.ephemeral() as instance:
        site = Site(faulty, url, "", days)
        found = evaluations(site, client, instance, day)["penstock_verdicts_of_day"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (found.metadata["failed"].value, found.metadata["without_rows"].value) == (2, 0)


def test_a_day_without_expected_partitions_does_not_pass(client: Client) -> None:
    found = day_outcome(client, "demo.campaign_daily", ["2000-01-01"])
    assert (found.passed, found.description) == (
        False,
        "no partition of demo.campaign_daily is expected on 2000-01-01",
    )

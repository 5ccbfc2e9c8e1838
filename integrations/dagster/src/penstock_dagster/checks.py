"""Asset checks from verdicts: one about a table, and one about each of its days."""

# Without `from __future__ import annotations`: Dagster inspects the annotations of functions as types.

import warnings
from collections.abc import Sequence
from typing import Any

import dagster as dg
from penstock.client import Client

from penstock_dagster.outcomes import Outcome, day_outcome, table_outcome
from penstock_dagster.specs import table_of

TABLE_CHECK = "penstock_verdicts"
DAY_CHECK = "penstock_verdicts_of_day"
_REQUIRE, _LAST_DAYS = "penstock/require", "penstock/last_days"


def build_penstock_checks(
    specs: Sequence[dg.AssetSpec],
    *,
    require: str | None = None,
    last_days: int | None = None,
    resource_key: str = "penstock",
    blocking: bool = False,
) -> list[dg.AssetChecksDefinition]:
    """Two checks for each spec: `penstock_verdicts` about the table, or its last days, and `penstock_verdicts_of_day`
    about the day of a Dagster run. A day passes if no partition of it has a failed last attempt or a demoted run; with
    `require`, if the rule of `penstock ready` holds (`all`, `any`, a number, or a share such as `95%`).

    A failed check is an error if a failed partition has no readable rows, and a warning if all of them still have the
    rows of an earlier run. The description has the number of failed partitions and the complaint of one of them.

    The sensor reports the check of the table after each change. Dagster stores no second result of a check with
    partitions without a run, so that the check of the day needs a run: that of an asset of `build_penstock_assets`, or
    one that executes only the check. `blocking` makes it stop the downstream assets of the same run.

    >>> build_penstock_checks(specs, require="95%", last_days=30)
    """
    found = []
    for spec in specs:
        found += [
            _table_check(spec, require, last_days, resource_key),
            _day_check(spec, require, resource_key, blocking),
        ]
    return found


def _table_check(
    spec: dg.AssetSpec, require: str | None, last_days: int | None, resource_key: str
) -> dg.AssetChecksDefinition:
    table = table_of(spec)

    def check_table(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with getattr(context.resources, resource_key).client() as client:
            return _result(table_outcome(client, table, require, last_days))

    scope = "all days" if last_days is None else f"the last {last_days} days"
    return dg.asset_check(
        asset=spec.key,
        name=TABLE_CHECK,
        description=f"The verdicts of Penstock about {table}, {scope}.",
        required_resource_keys={resource_key},
        metadata={_REQUIRE: require, _LAST_DAYS: last_days},
    )(check_table)


def _day_check(spec: dg.AssetSpec, require: str | None, resource_key: str, blocking: bool) -> dg.AssetChecksDefinition:
    table = table_of(spec)

    def check_day(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with getattr(context.resources, resource_key).client() as client:
            return _result(day_outcome(client, table, context.partition_keys, require))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # of checks with partitions
        return dg.asset_check(
            asset=spec.key,
            name=DAY_CHECK,
            description=f"The verdicts of Penstock about the partitions of {table} of one day.",
            blocking=blocking,
            required_resource_keys={resource_key},
            partitions_def=spec.partitions_def,
        )(check_day)


def table_evaluation(client: Client, table: str, check: dg.AssetCheckSpec) -> dg.AssetCheckEvaluation:
    """The present result of the check of a table, for an event without a run."""
    found = table_outcome(client, table, check.metadata[_REQUIRE], check.metadata[_LAST_DAYS])
    return dg.AssetCheckEvaluation(asset_key=check.asset_key, check_name=check.name, **_facts(found))


def _result(found: Outcome) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(**_facts(found))


def _facts(found: Outcome) -> dict[str, Any]:
    severity = dg.AssetCheckSeverity.ERROR if found.is_error else dg.AssetCheckSeverity.WARN
    return {
        "passed": found.passed,
        "severity": severity,
        "description": found.description,
        "metadata": found.metadata,
    }

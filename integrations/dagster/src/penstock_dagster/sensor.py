"""The sensor: publications become materializations by table and day, verdicts become check evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from penstock.client import Client

from penstock_dagster.checks import TABLE_CHECK, table_evaluation
from penstock_dagster.outcomes import coverage, day_outcome
from penstock_dagster.publications import Changes, LedgerCursor, Publication, TableDay, read_changes
from penstock_dagster.specs import table_of

LAST_EVENT = "penstock/last_event"  # the event by which a repeated report is recognized
ORDERED_RUNS = "penstock/ordered_runs"  # the runs that an asset of build_penstock_assets reports itself
_LISTED_RUNS = 20

AssetEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


def build_penstock_sensor(
    specs: Sequence[dg.AssetSpec],
    checks: Sequence[dg.AssetChecksDefinition] = (),
    *,
    name: str = "penstock_publications",
    resource_key: str = "penstock",
    minimum_interval_seconds: int = 60,
    days_per_evaluation: int = 100,
    begin_after: int = 0,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that follows the ledger of Penstock and reports each changed table and day once, however many customers
    it has: a materialization for publications, an observation for rejected partitions and withdrawn rows. It reports
    the check `penstock_verdicts` of each changed table, too, if `checks` has it.

    Its cursor is the position in the ledger, so that nothing is lost while Dagster is down. If Dagster dies after it
    stored events and before it stored the cursor, the next evaluation leaves out the materializations that exist. The
    first evaluation begins after the position `begin_after`: 0 reports the whole ledger. An evaluation reads at most
    `days_per_evaluation` days, and the next one continues.

    >>> build_penstock_sensor(specs, build_penstock_checks(specs))
    """
    keys = {table_of(spec): spec.key for spec in specs}
    found = [check for one in checks for check in one.check_specs if check.name == TABLE_CHECK]
    check_of = {check.asset_key: check for check in found}

    def follow_publications(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        with getattr(context.resources, resource_key).client() as client:
            changes = read_changes(client, LedgerCursor.parse(context.cursor, begin_after), keys, days_per_evaluation)
            events = [
                *_materializations(client, context.instance, keys, changes),
                *_observations(client, keys, changes),
                *_evaluations(client, keys, check_of, changes),
            ]
        reason = None if events else "nothing was published or rejected since the last evaluation"
        return dg.SensorResult(asset_events=events, cursor=str(changes.cursor), skip_reason=reason)

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=follow_publications,
        minimum_interval_seconds=minimum_interval_seconds,
        description="Reports the publications and verdicts of Penstock, by table and day.",
        required_resource_keys={resource_key},
        default_status=default_status,
    )


def _materializations(
    client: Client, instance: dg.DagsterInstance, keys: Mapping[str, dg.AssetKey], changes: Changes
) -> list[AssetEvent]:
    events: list[AssetEvent] = []
    for at in sorted(changes.published):
        key, publication = keys[at.table], changes.published[at]
        if _is_reported(instance, key, at.day, publication):
            continue
        metadata = _publication_metadata(client, at, publication)
        events.append(dg.AssetMaterialization(key, partition=at.day, metadata=metadata))
    return events


def _is_reported(instance: dg.DagsterInstance, key: dg.AssetKey, day: str, publication: Publication) -> bool:
    """Whether the newest materialization of the day is about the same publications: an earlier evaluation whose cursor
    was lost reported them, or the Dagster run that ordered them."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[day])
    records = instance.fetch_materializations(wanted, limit=1).records
    found = records[0].asset_materialization if records else None
    if found is None:
        return False
    last, ordered = found.metadata.get(LAST_EVENT), found.metadata.get(ORDERED_RUNS)
    if isinstance(last, dg.TextMetadataValue) and last.value == publication.last_event:
        return True
    runs = ordered.value if isinstance(ordered, dg.JsonMetadataValue) else None
    return isinstance(runs, list) and publication.run_ids <= set(runs)


def _publication_metadata(client: Client, at: TableDay, publication: Publication) -> dict[str, Any]:
    covered, partitions = coverage(client, at.table, at.day), len(publication.rows_by_partition)
    runs = sorted(publication.run_ids)
    return {
        "rows": publication.rows,
        "partitions": partitions,
        "partitions_available": covered.available,
        "partitions_expected": covered.expected,
        "runs": dg.MetadataValue.json(runs[-_LISTED_RUNS:]),
        "last_run": dg.MetadataValue.url(f"{client.url}/runs/{runs[-1]}"),
        LAST_EVENT: publication.last_event,
        # the row count of the day is known only if all of its partitions were published together
        **({"dagster/partition_row_count": publication.rows} if partitions == covered.available else {}),
    }


def _observations(client: Client, keys: Mapping[str, dg.AssetKey], changes: Changes) -> list[AssetEvent]:
    """Days with rejected partitions or withdrawn rows. Dagster has no event that takes a materialization back."""
    events: list[AssetEvent] = []
    for at in sorted(changes.hidden | changes.rejected):
        covered, verdict = coverage(client, at.table, at.day), day_outcome(client, at.table, [at.day])
        counts = {"partitions_available": covered.available, "partitions_expected": covered.expected}
        text = f"{covered.available} of {covered.expected} partitions are published; {verdict.description}"
        metadata = {**verdict.metadata, **counts}
        events.append(dg.AssetObservation(keys[at.table], description=text, partition=at.day, metadata=metadata))
    return events


def _evaluations(
    client: Client, keys: Mapping[str, dg.AssetKey], check_of: Mapping[dg.AssetKey, dg.AssetCheckSpec], changes: Changes
) -> list[AssetEvent]:
    """The present results of the checks of all changed tables."""
    changed = sorted({at.table for at in changes.days})
    return [table_evaluation(client, table, check_of[keys[table]]) for table in changed if keys[table] in check_of]

"""Reports what a run read and wrote as OpenLineage events, one for each asset."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from ulid import ULID

from penstock import __version__
from penstock.clock import iso
from penstock.config.settings import LineageSettings, Settings
from penstock.contract.contract import Contract
from penstock.errors import ConfigError, TransientError
from penstock.observe.column_lineage import InputColumn, LineageUnknown, column_lineage
from penstock.partition import AssetKind
from penstock.redaction import SECRETS
from penstock.state.assets import AssetRun
from penstock.warehouse.heads import TableHead

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

log = logging.getLogger(__name__)

_ASKED = "penstock.partitions"  # the partitions that a model derives; no dataset
_KEY_COLUMNS = {"customer_id": "string", "logical_date": "date"}
_PRODUCER = f"urn:penstock:{__version__}"


def run_events(
    settings: Settings,
    run_id: str,
    assets: Sequence[AssetRun],
    contracts: Mapping[str, Contract],
    heads: Mapping[str, TableHead],
    lake_url: str,
) -> list[RunEvent]:
    """The events of a run. `contracts` are by fingerprint, `heads` by table name."""
    builder = _EventBuilder(settings, run_id, contracts, heads, lake_url)
    return [builder.event(asset) for asset in assets]


def emit(lineage: LineageSettings, events: Sequence[RunEvent]) -> None:
    """Send the events to a file or to a service; the client retries a few times when the service does not respond.
    Raises TransientError if the events cannot be sent."""
    from openlineage.client import OpenLineageClient

    client = OpenLineageClient(config={"transport": _transport(lineage)})
    try:
        for event in events:
            client.emit(event)
    except Exception as error:
        raise TransientError(f"lineage could not be sent to {lineage.where}: {type(error).__name__}") from error
    finally:
        client.close()


def require_openlineage() -> None:
    try:
        import openlineage.client  # noqa: F401 - only checks that it is installed
    except ImportError:
        raise ConfigError("lineage needs more packages: pip install 'penstock[openlineage]'") from None


def _transport(lineage: LineageSettings) -> dict[str, Any]:
    if lineage.file is not None:
        return {"type": "file", "log_file_path": lineage.file, "append": True}
    auth = {"type": "api_key", "apiKey": lineage.api_key} if lineage.api_key else {}
    seconds = lineage.timeout.total_seconds()
    return {"type": "http", "url": lineage.url, "endpoint": lineage.endpoint, "timeout": seconds, "auth": auth}


class _EventBuilder:
    def __init__(
        self,
        settings: Settings,
        run_id: str,
        contracts: Mapping[str, Contract],
        heads: Mapping[str, TableHead],
        lake_url: str,
    ) -> None:
        self._settings = settings
        self._run_id = run_id
        self._contracts = contracts
        self._heads = heads
        self._lake_url = lake_url
        self._namespace = f"penstock://{settings.tenant}/{settings.workspace}"

    def event(self, asset: AssetRun) -> RunEvent:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState, set_producer

        set_producer(_PRODUCER)
        contract = self._contracts[asset.contract_fingerprint]
        state = RunState.COMPLETE if asset.accepted else RunState.FAIL if asset.rejected else RunState.ABORT
        # The same asset and run always have the same id: an event that is sent again is no second run.
        name = str(uuid5(NAMESPACE_URL, f"{self._namespace}/{self._run_id}/{asset.name}/{asset.schema_version}"))
        return RunEvent(
            eventTime=iso(asset.ended_at or asset.began_at),
            producer=_PRODUCER,
            run=Run(runId=name, facets=self._run_facets(asset)),
            job=Job(self._namespace, asset.name, facets=_job_facets(contract)),
            eventType=state,
            inputs=self._inputs(contract),
            outputs=[self._output(asset, contract)] if asset.accepted else [],
        )

    def _run_facets(self, asset: AssetRun) -> dict[str, Any]:
        from openlineage.client.facet_v2 import error_message_run, nominal_time_run, parent_run

        facets: dict[str, Any] = {
            "parent": parent_run.ParentRunFacet(
                parent_run.Run(str(UUID(bytes=ULID.from_str(self._run_id).bytes))),
                parent_run.Job(self._namespace, "run"),
            ),
            "nominalTime": nominal_time_run.NominalTimeRunFacet(
                _midnight(asset.first_day), _midnight(asset.last_day + timedelta(days=1))
            ),
        }
        if asset.rejected:
            counts = f"{asset.rejected:,} of {asset.rejected + asset.accepted:,} partitions were rejected"
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                f"{counts}, for example: {SECRETS.hide(str(asset.error))}", "PYTHON"
            )
        return facets

    def _inputs(self, contract: Contract) -> list[Any]:
        from openlineage.client.event_v2 import InputDataset

        if contract.kind is AssetKind.DERIVED:
            return [InputDataset(self._namespace, table) for table in contract.options["depends_on"]]
        return [InputDataset(f"{self._namespace}/source/{contract.source}", contract.query_name)]

    def _output(self, asset: AssetRun, contract: Contract) -> Any:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import (
            dataset_version_dataset,
            output_statistics_output_dataset,
            schema_dataset,
            symlinks_dataset,
        )

        fields = [schema_dataset.SchemaDatasetFacetFields(field.name, field.type) for field in contract.fields]
        facets: dict[str, Any] = {"schema": schema_dataset.SchemaDatasetFacet(fields), **self._columns(contract)}
        if head := self._heads.get(contract.table):
            facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(head.version))
            table = symlinks_dataset.Identifier(*_place(self._lake_url, head.location), "TABLE")
            facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([table])
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            asset.rows, asset.payload_bytes
        )
        return OutputDataset(self._namespace, asset.name, facets=facets, outputFacets={"outputStatistics": statistics})

    def _columns(self, contract: Contract) -> dict[str, Any]:
        """The facet with the input columns of each column of a SQL model. Without it if the SQL does not show them."""
        from openlineage.client.facet_v2 import column_lineage_dataset as facet

        if contract.kind is not AssetKind.DERIVED or contract.options["language"] != "sql":
            return {}
        try:
            names = [field.name for field in contract.fields]
            found = column_lineage(contract.options["code"], self._input_columns(contract), names)
        except LineageUnknown as error:
            facts = {"run_id": self._run_id, "model": contract.query_name, "error": str(error)}
            log.info("lineage.columns_unknown", extra={"facts": facts})
            return {}

        def inputs(columns: Sequence[InputColumn]) -> list[facet.InputField]:
            by_place: dict[tuple[str, str], list[facet.Transformation]] = {}
            for one in columns:
                kind = "DIRECT" if one.use.is_direct else "INDIRECT"
                uses = by_place.setdefault((one.table, one.column), [])
                uses.append(facet.Transformation(kind, one.use.value, "", False))
            return [
                facet.InputField(self._namespace, *place, uses)
                for place, uses in by_place.items()
                if place[0] != _ASKED
            ]

        fields = {name: facet.Fields(inputs(columns)) for name, columns in found.columns.items()}
        return {"columnLineage": facet.ColumnLineageDatasetFacet(fields, inputs(found.table))}

    def _input_columns(self, contract: Contract) -> dict[str, dict[str, str]]:
        """The columns of the tables that the SQL of a model may read: by name, those of every contract of the table."""
        found = {table: dict(_KEY_COLUMNS) for table in contract.options["depends_on"]} | {_ASKED: dict(_KEY_COLUMNS)}
        for stored in self._contracts.values():
            if (columns := found.get(f"{stored.source}.{stored.query_name}")) is not None:
                columns |= {field.name: field.type for field in stored.columns} | {"schema_version": "string"}
        return found


def _job_facets(contract: Contract) -> dict[str, Any]:
    from openlineage.client.facet_v2 import job_type_job, source_code_job, sql_job

    kind = "MODEL" if contract.kind is AssetKind.DERIVED else "QUERY"
    facets: dict[str, Any] = {"jobType": job_type_job.JobTypeJobFacet("BATCH", "PENSTOCK", kind)}
    if contract.kind is AssetKind.DERIVED and contract.options["language"] == "sql":
        facets["sql"] = sql_job.SQLJobFacet(contract.options["code"], "spark")
    elif contract.kind is AssetKind.DERIVED:
        facets["sourceCode"] = source_code_job.SourceCodeJobFacet("python", contract.options["code"])
    return facets


def _place(lake_url: str, location: str) -> tuple[str, str]:
    """Namespace and name of a table in a lake, as OpenLineage names files."""
    if not lake_url.startswith("s3://"):
        return "file", f"{lake_url.rstrip('/')}/{location}"
    bucket, _, prefix = lake_url.removeprefix("s3://").partition("/")
    return f"s3://{bucket}", f"{prefix}/{location}" if prefix else location


def _midnight(day: date) -> str:
    return iso(datetime.combine(day, time(), UTC))

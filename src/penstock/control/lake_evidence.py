"""Collects evidence from a lake to rebuild the state of an asset: table rows, seals, contracts, exported events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.config.checks import Field
from penstock.contract.contract import Contract
from penstock.contract.schema import field_type
from penstock.errors import RawError
from penstock.lake import Lake
from penstock.ledger.segment_tables import from_table
from penstock.lifecycle import Act, Outcome
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.verify import table_contents
from penstock.plural import counted
from penstock.projections.fact import Fact
from penstock.raw.reader import RawReader
from penstock.raw.seal import Seal
from penstock.state.recovery import FoundRun, SealedRun
from penstock.warehouse.format import Table, table_format
from penstock.warehouse.layout import KEY_NAMES, MONTH, RUN

_SEALS = 500  # that are read at once


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A Delta table in the lake, by its location."""

    source: str
    query_name: str
    schema_version: str
    location: str

    @property
    def name(self) -> str:
        return f"{self.source}.{self.query_name}.{self.schema_version}"

    @property
    def asset(self) -> tuple[str, str]:
        return self.source, self.query_name


@dataclass(frozen=True, slots=True)
class AssetEvidence:
    """The evidence of one asset. `unusable` holds the runs whose rows prove nothing, with the reason."""

    found: Sequence[FoundRun]
    sealed: Sequence[SealedRun]
    unusable: Mapping[AttemptKey, str]
    contracts: Sequence[Contract]
    in_raw: Collection[AttemptKey]  # every run that has a seal
    damaged: Mapping[str, str]  # data files that cannot be read, with the reason


@dataclass(slots=True)
class ExportedFacts:
    """Verdicts and demotions in exported segments of the ledger, by attempt."""

    events: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    outcomes: dict[AttemptKey, tuple[str, str | None]] = field(default_factory=dict)  # outcome and error class
    digests: dict[AttemptKey, str] = field(default_factory=dict)
    demoted: set[AttemptKey] = field(default_factory=set)


def tables_in(lake: Lake) -> list[FoundTable]:
    """The tables of a lake at locations that Penstock uses."""
    found = []
    for location in sorted(table_format(lake).locations()):
        parts = location.split("/")
        if len(parts) == 4:
            found.append(FoundTable(parts[1], parts[2], parts[3], location))
    return found


def exported_facts(lake: Lake) -> ExportedFacts:
    """The verdicts and demotions in exported segments. The same event may be in several segments."""
    facts = ExportedFacts()
    for path in sorted(entry.path for entry in lake.list("ledger") if entry.path.endswith(".parquet")):
        try:
            events = from_table(pq.read_table(pa.BufferReader(lake.read(path))))
        except (pa.ArrowException, KeyError, ValueError) as error:
            facts.damaged[path] = str(error)
            continue
        facts.events += len(events)
        for event in events:
            _add_fact(facts, event)
    return facts


def _add_fact(facts: ExportedFacts, event: Fact) -> None:
    if event.run_id is None or event.type not in ("TaskFinished", "AuthorityChanged"):
        return
    attempt = AttemptKey(PartitionKey.parse(event.payload["partition_key"]), RunId(event.run_id))
    if event.type == "TaskFinished":
        facts.outcomes[attempt] = (event.payload["outcome"], event.payload["error_class"])
    elif event.payload["act"] in (Act.DEMOTE, Act.RECHECK):
        facts.demoted.add(attempt)
    elif event.payload.get("content_digest"):
        facts.digests[attempt] = event.payload["content_digest"]


def collect_evidence(
    lake: Lake,
    asset: tuple[str, str],
    tables: Sequence[Table],
    contracts: Mapping[str, Contract],
    facts: ExportedFacts,
    known: Mapping[AttemptKey, bool],
    now: datetime,
    report: Callable[[float], None],
) -> AssetEvidence:
    """Read the newest versions of the tables of an asset, and the seals of runs that the database does not have as
    accepted. `known` maps each attempt in the database to whether it was accepted."""
    raw = RawReader(lake)
    found: list[FoundRun] = []
    unusable: dict[AttemptKey, str] = {}
    used: dict[str, Contract] = {}
    damaged: dict[str, str] = {}
    for number, table in enumerate(tables):
        contract = table_contract(table, contracts)
        contents, unread = table_contents(
            lake,
            table,
            contract,
            lambda share, before=number: report((before + share) / (len(tables) + 1)),  # type: ignore[misc]
        )
        damaged |= {f"{table.path}/{path}": reason for path, reason in unread.items()}
        digests = {
            AttemptKey(PartitionKey(asset[0], customer, asset[1], day), RunId(run)): content
            for (day, customer, run), content in contents.items()
        }

        used[contract.fingerprint] = contract
        runs = {
            attempt: FoundRun(
                attempt,
                table.name,
                contract.schema_version,
                content.rows,
                "",
                0,
                content.digest(contract.schema_version),
                contract.fingerprint,
                now,
                attempt in facts.demoted,
                usable=False,
            )
            for attempt, content in sorted(digests.items(), key=lambda item: item[0])
        }
        found += [run for attempt, run in runs.items() if known.get(attempt)]
        for attempt, seal in _seals(raw, [attempt for attempt in runs if not known.get(attempt)]):
            run = runs[attempt]
            if isinstance(seal, RawError) or seal is None:
                unusable[attempt] = str(seal) if seal else "its raw run has no seal"
            elif seal.record_count != run.record_count:
                rows = counted(run.record_count, "row")
                unusable[attempt] = f"the table has {rows} of it, its seal {seal.record_count:,}"
            else:
                mine = _contract_of(seal, contract, contracts)
                used[mine.fingerprint] = mine
                run = run._replace(
                    payload_digest=seal.payload_sha256,
                    payload_bytes=seal.payload_bytes,
                    contract_fingerprint=mine.fingerprint,
                    extracted_at=seal.extracted_at,
                    usable=True,
                )
            found.append(run)
    served = {run.attempt for run in found}
    in_raw = set(raw.sealed(*asset))
    others = sorted(in_raw - served - set(known))
    sealed = list(_sealed_runs(raw, others, asset, contracts, facts, used))
    report(1.0)
    return AssetEvidence(found, sealed, unusable, list(used.values()), in_raw, damaged)


def _sealed_runs(
    raw: RawReader,
    attempts: Sequence[AttemptKey],
    asset: tuple[str, str],
    contracts: Mapping[str, Contract],
    facts: ExportedFacts,
    used: dict[str, Contract],
) -> Iterator[SealedRun]:
    of_asset = {c.schema_version: c for c in contracts.values() if (c.source, c.query_name) == asset}
    for attempt, seal in _seals(raw, attempts):
        if not isinstance(seal, Seal):
            continue
        contract = contracts.get(seal.query_hash) or of_asset.get(seal.schema_version)
        if contract is None:
            continue
        used[contract.fingerprint] = contract
        outcome, error_class = facts.outcomes.get(attempt, (Outcome.CANCELLED, "internal"))
        digest = facts.digests.get(attempt)
        if outcome == Outcome.SUCCEEDED and digest is None:
            outcome, error_class = Outcome.CANCELLED, "internal"
        yield SealedRun(
            attempt,
            seal.schema_version,
            seal.record_count,
            seal.payload_sha256,
            seal.payload_bytes,
            contract.fingerprint,
            seal.extracted_at,
            outcome,
            error_class or "internal",
            digest,
            attempt in facts.demoted,
        )


def _seals(raw: RawReader, attempts: Sequence[AttemptKey]) -> Iterator[tuple[AttemptKey, Seal | RawError | None]]:
    for at in range(0, len(attempts), _SEALS):
        chunk = attempts[at : at + _SEALS]
        yield from zip(chunk, raw.seals(chunk), strict=True)


def table_contract(table: Table, contracts: Mapping[str, Contract]) -> Contract:
    """The contract of a table: a known one, or else one that has only the table's columns."""
    for contract in contracts.values():
        if contract.table == table.name and contract.fields:
            return contract
    source, query_name, version = table.name.split(".")
    own = {MONTH, RUN, *KEY_NAMES}
    fields = tuple(
        Field(name=column.name, type=field_type(column.type))
        for column in table.arrow_schema()
        if column.name not in own
    )
    return Contract(source, query_name, version, fields, (), "ignore", "ignore", {"recovered": True})


def _contract_of(seal: Seal, of_table: Contract, contracts: Mapping[str, Contract]) -> Contract:
    found = contracts.get(seal.query_hash)
    if found is None or found.table != of_table.table:
        return of_table
    return found if found.fields else replace(found, fields=of_table.fields)

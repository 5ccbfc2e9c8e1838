"""Documents of contracts: a contract in force, a trial, a proposal, and exchange formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document

if TYPE_CHECKING:
    from penstock.contract.contract import Contract
    from penstock.pipeline.contract_trial import Trial


def contract_document(name: str, contract: Contract) -> Document:
    """The contract of a query with its table and fingerprint."""
    return Document(
        {
            "query": name,
            "table": contract.table,
            "fingerprint": contract.fingerprint,
            "contract": contract.body(),
        }
    )


def trial_document(name: str, contract: Contract, trial: Trial) -> Document:
    """The result of checking a file with rows against a contract."""
    return Document(
        {
            "query": name,
            "fingerprint": contract.fingerprint,
            "accepted": trial.is_acceptable,
            "rows": trial.rows,
            "complaints": [complaint.as_dict() for complaint in trial.complaints],
            "skipped": list(trial.skipped),
        }
    )


def proposal_document(name: str, query: Mapping[str, Any], rows: int, notes: Sequence[str], yaml: str) -> Document:
    """A query that is inferred from rows, as values and as YAML."""
    return Document({"queries": {name: query}, "rows": rows, "notes": list(notes), "yaml": yaml})


def import_document(queries: Mapping[str, Any], notes: Sequence[str], yaml: str) -> Document:
    """The queries of an imported data contract, as values and as YAML."""
    return Document({"queries": queries, "notes": notes, "yaml": yaml})


def odcs_document(exported: dict[str, Any]) -> Document:
    """A data contract in the Open Data Contract Standard."""
    return Document(exported)

"""Stores contracts in the lake, so that a lost state database can be rebuilt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from penstock.contract.contract import Contract
from penstock.lake import Lake

FOLDER = "contracts"


def store_contracts(lake: Lake, contracts: Iterable[Contract]) -> None:
    """Write each contract once, under its fingerprint."""
    for contract in contracts:
        lake.create(f"{FOLDER}/{contract.fingerprint}.json", orjson.dumps(contract.body()))


def stored_contracts(lake: Lake) -> dict[str, Contract]:
    """Return the contracts in the lake by fingerprint. Files that are not valid contracts are skipped."""
    paths = sorted(entry.path for entry in lake.list(FOLDER))
    found: dict[str, Contract] = {}
    for path, data in zip(paths, lake.read_many(paths), strict=True):
        if data is None:
            continue
        try:
            body: dict[str, Any] = orjson.loads(data)
            found[path.rpartition("/")[2].removesuffix(".json")] = Contract.from_body(body)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            continue
    return found

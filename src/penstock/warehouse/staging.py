"""Staging work and its results: the interface between the publisher and the Spark job that writes files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.partition import PartitionKey
from penstock.warehouse.format import StagedFile
from penstock.warehouse.layout import SortKey
from penstock.warehouse.packing import Part


@dataclass(frozen=True, slots=True)
class StagePart:
    """One part of the staging work, with its table."""

    table: str
    table_path: str
    fields: pa.Schema
    dropped: frozenset[SortKey]
    part: Part


@dataclass(frozen=True, slots=True)
class PartStaged:
    """The result of a part: its files, and the partitions whose raw run could not be read."""

    files: tuple[StagedFile, ...]
    broken: Mapping[PartitionKey, str]


# Stages parts in parallel and returns the results in the same order. Gets the contract fingerprint of each partition.
Stager = Callable[[Sequence[StagePart], Mapping[PartitionKey, str]], list[PartStaged]]

"""What is to be staged, and what became of it: the words between the publisher and whoever writes files for it."""

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
    """One share of the staging work, with the table it is for."""

    table: str
    table_path: str
    fields: pa.Schema
    dropped: frozenset[SortKey]
    part: Part


@dataclass(frozen=True, slots=True)
class PartStaged:
    """What became of a part: its files, or the partitions whose raw run could not be read."""

    files: tuple[StagedFile, ...]
    broken: Mapping[PartitionKey, str]


# Stages parts in parallel and answers in the same order. The contracts are looked up by fingerprint.
Stager = Callable[[Sequence[StagePart], Mapping[PartitionKey, str]], list[PartStaged]]

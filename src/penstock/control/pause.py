"""Converts selections and ranges to the scopes of a pause."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import product

from penstock.control.select import Selection
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey
from penstock.state.pause_scope import Scope


def scopes(selection: Selection) -> list[Scope]:
    """The scopes of a selection by filters, one for each named customer and query. They also hold partitions that are
    expected later."""
    owners = product(selection.customers or (None,), selection.queries or (None,))
    return [Scope(selection.source, customer, query, selection.since, selection.until) for customer, query in owners]


def scopes_of(ranges: Iterable[ExpectedRange]) -> list[Scope]:
    """The scopes of exactly these partitions."""
    return [Scope(span.source, span.customer_id, span.query_name, span.first, span.last) for span in ranges]


def keys_of(ranges: Iterable[ExpectedRange]) -> list[PartitionKey]:
    """The keys of the partitions of these ranges."""
    return [
        PartitionKey(span.source, span.customer_id, span.query_name, span.first + timedelta(days=number))
        for span in ranges
        for number in range(len(span))
    ]

"""Keys of partitions, attempts and runs. Keys are validated here, on input, and nowhere else."""

from __future__ import annotations

import re
from datetime import date, datetime
from enum import StrEnum
from typing import NamedTuple, NewType, Self

from ulid import ULID

from penstock.errors import UsageError

RunId = NewType("RunId", str)

MODELS = "models"  # the source of derived assets
ALL_CUSTOMERS = "all"  # the customer of partitions that are derived from all customers

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_CUSTOMER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def name(text: str, what: str = "name") -> str:
    """Return a name that is safe in a path, in SQL and in a table name. Raises UsageError otherwise."""
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{what} {text!r} is not valid: use lower-case letters, digits and underscores, starting with a letter,"
            " at most 63 of them"
        )
    return text


def customer(text: str) -> str:
    """Return a customer id that is safe in a path and in SQL. Raises UsageError otherwise."""
    if not _CUSTOMER.fullmatch(text) or ".." in text:
        raise UsageError(f"customer id {text!r} is not valid: use letters, digits, '.', '_' or '-', at most 63 of them")
    return text


def day(text: str, what: str = "date") -> date:
    """Parse an ISO date such as 2024-06-01. Raises UsageError for other formats."""
    if _ISO_DATE.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    raise UsageError(f"{what} {text!r} is not a date: write YYYY-MM-DD, for example 2024-06-01")


def run_id(text: str) -> RunId:
    if not _ULID.fullmatch(text):
        raise UsageError(
            f"run {text!r} is not a run id: it is a ULID of 26 characters, as `penstock state history` shows it"
        )
    return RunId(text)


class AssetKind(StrEnum):
    """Where the rows of an asset come from."""

    FETCHED = "fetched"  # a query of a source
    DERIVED = "derived"  # a model that reads other assets


def asset_kind(source: str) -> AssetKind:
    """The kind of the assets of a source."""
    return AssetKind.DERIVED if source == MODELS else AssetKind.FETCHED


def new_ulid() -> str:
    return str(ULID())


def ulid_time(moment: datetime) -> str:
    """A text that sorts after every ULID made earlier and before every later one."""
    return str(ULID.from_timestamp(moment.timestamp()))[:10]


def new_ulids(count: int) -> list[str]:
    """Return ULIDs of one moment in ascending order. One is random, the others count up from it."""
    first = int(ULID()) >> 40 << 40  # leaves room to count without changing the time
    head = str(ULID.from_int(first))[:-8]
    return [head + _tail(number) for number in range(count)]


def _tail(number: int) -> str:
    """Encode a number below 2**40 as the last eight digits of a ULID."""
    return _PAIRS[number >> 30] + _PAIRS[number >> 20 & 1023] + _PAIRS[number >> 10 & 1023] + _PAIRS[number & 1023]


_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]


def new_run_id() -> RunId:
    return RunId(new_ulid())


class PartitionKey(NamedTuple):
    """One logical partition: the unit of retry, validation, load and replacement."""

    source: str
    customer_id: str
    query_name: str
    logical_date: date

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key of `source/customer_id/query_name/YYYY-MM-DD`. Raises UsageError for other texts; `str` reverses it.

        >>> PartitionKey.parse("demo/1000000001/campaign_daily/2024-06-01").customer_id
        """
        parts = text.split("/")
        if len(parts) != 4:
            raise UsageError(f"{text!r} is not a partition key: write source/customer_id/query_name/YYYY-MM-DD")
        source, customer_id, query_name, logical_date = parts
        return cls(name(source, "source"), customer(customer_id), name(query_name, "query"), day(logical_date))

    @property
    def kind(self) -> AssetKind:
        """Whether the partition is fetched from a source or derived by a model.

        >>> key.kind
        """
        return asset_kind(self.source)

    @property
    def asset(self) -> str:
        """The asset of the partition: `source.query_name`.

        >>> key.asset
        """
        return f"{self.source}.{self.query_name}"

    def __str__(self) -> str:
        return f"{self.source}/{self.customer_id}/{self.query_name}/{self.logical_date.isoformat()}"


class AttemptKey(NamedTuple):
    """One partition in one run."""

    partition: PartitionKey
    run_id: RunId

    def __str__(self) -> str:
        return f"{self.partition} (run {self.run_id})"

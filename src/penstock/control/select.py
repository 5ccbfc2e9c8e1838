"""Selections, the same for every command, and the ranges of expected partitions that they match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Self, assert_never

from penstock.clock import utc_offset
from penstock.config.assets import Model, Query
from penstock.config.settings import Customer, Settings
from penstock.control.filters import customer_ids, parse_day
from penstock.control.local_days import LocalDays
from penstock.derived import Derived
from penstock.errors import ConfigError, UsageError
from penstock.expected import ExpectedRange
from penstock.lifecycle import PartitionStatus
from penstock.partition import ALL_CUSTOMERS, MODELS, AssetKind, PartitionKey

FORCE_ABOVE = 10_000  # a change of more partitions needs `force`


@dataclass(frozen=True, slots=True, init=False)
class Selection:
    """Selects partitions by keys or filters; without either, all of them. Raises UsageError for values that are no key,
    date or status.

    >>> Selection(customers="1000000001", since="2024-06-01", status="failed")
    """

    keys: tuple[PartitionKey, ...]
    source: str | None
    customers: tuple[str, ...]
    queries: tuple[str, ...]
    since: date | None
    until: date | None
    status: PartitionStatus | None
    schema_version: str | None  # of the authoritative run; for backfills that move history to another version

    def __init__(
        self,
        keys: str | PartitionKey | Iterable[PartitionKey | str] = (),
        source: str | None = None,
        customers: str | Sequence[str] | None = (),
        queries: str | Iterable[str] | None = (),
        since: date | str | None = None,
        until: date | str | None = None,
        status: PartitionStatus | str | None = None,
        schema_version: str | None = None,
    ) -> None:
        named = (keys,) if isinstance(keys, str | PartitionKey) else keys
        values = {
            "keys": tuple(PartitionKey.parse(key) if isinstance(key, str) else key for key in named),
            "source": source,
            "customers": customer_ids(customers),
            "queries": (queries,) if isinstance(queries, str) else tuple(queries or ()),
            "since": parse_day(since, "since"),
            "until": parse_day(until, "until"),
            "status": _status(status),
            "schema_version": schema_version,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def names_derived(self) -> bool:
        """True if the selection names models, by their source or by a key.

        >>> Selection(source="models").names_derived
        """
        return self.source == MODELS or any(key.kind is AssetKind.DERIVED for key in self.keys)

    def as_dict(self) -> dict[str, Any]:
        """The given filters as JSON values, for the audit log and stored selectors.

        >>> Selection(source="demo").as_dict()
        """
        given = {name: value for name, value in asdict(self).items() if value}
        if self.keys:
            given["keys"] = [str(key) for key in self.keys]
        return {name: _plain(value) for name, value in given.items()}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The selection that `as_dict` returned.

        >>> Selection.from_dict({"source": "demo"})
        """
        return cls(
            tuple(PartitionKey.parse(key) for key in given.get("keys", ())),
            given.get("source"),
            tuple(given.get("customers", ())),
            tuple(given.get("queries", ())),
            _date(given.get("since")),
            _date(given.get("until")),
            PartitionStatus(given["status"]) if given.get("status") else None,
            given.get("schema_version"),
        )


def _status(value: PartitionStatus | str | None) -> PartitionStatus | None:
    try:
        return None if value is None else PartitionStatus(value)
    except ValueError:
        raise UsageError(f"status {value!r} is unknown (known: {', '.join(PartitionStatus)})") from None


def expected(settings: Settings, selection: Selection, now: datetime) -> list[ExpectedRange]:
    """The selected partitions that the configuration expects to exist by `now`. Raises UsageError for unknown names."""
    refuse_unknown(settings, selection)
    models, days = derived(settings, now), LocalDays(settings, now)
    if selection.keys:
        return [_only(settings, models, key, days) for key in sorted(set(selection.keys))]
    ranges: list[ExpectedRange] = []
    for query in settings.queries.values():
        if selection.source not in (None, query.source) or (selection.queries and query.name not in selection.queries):
            continue
        ranges += [found for found in _ranges(settings, query, selection, days) if found.first <= found.last]
    return [*ranges, *_of_models(settings, models, selection)]


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """Expected partitions by the kind of their asset. Fetched ones are attempted in turn; derived ones when their
    inputs are published."""

    fetched: list[ExpectedRange]
    derived: list[ExpectedRange]


def by_kind(ranges: Iterable[ExpectedRange]) -> ExpectedWork:
    """Split ranges into fetched and derived ones."""
    work = ExpectedWork([], [])
    for span in ranges:
        match span.kind:
            case AssetKind.FETCHED:
                work.fetched.append(span)
            case AssetKind.DERIVED:
                work.derived.append(span)
            case kind:
                assert_never(kind)
    return work


def derived(settings: Settings, now: datetime) -> Derived:
    """The models of the workspace, with their expected partitions by `now`."""
    days = LocalDays(settings, now)

    def of_query(name: str) -> dict[str, ExpectedRange]:
        found = _ranges(settings, settings.query(name), Selection(), days)
        return {span.customer_id: span for span in found if len(span) or span.last == span.over}

    return Derived(settings, of_query)


def _of_models(settings: Settings, models: Derived, selection: Selection) -> Iterator[ExpectedRange]:
    if selection.source not in (None, MODELS):
        return
    for name in settings.models:
        if selection.queries and name not in selection.queries:
            continue
        for span in models.ranges(name).values():
            found = replace(
                span,
                first=max(day for day in (span.first, selection.since) if day),
                last=min(day for day in (span.last, selection.until) if day),
            )
            if len(found) and (not selection.customers or span.customer_id in selection.customers):
                yield found


def due_range(settings: Settings, key: PartitionKey, now: datetime) -> ExpectedRange:
    """The days that are due for the customer and query of `key`."""
    if key.kind is AssetKind.DERIVED:
        return _of_model(derived(settings, now), key)
    days = LocalDays(settings, now)
    return _range(settings.query(key.query_name), settings.customer(key.customer_id), Selection(), days)


def due_times(settings: Settings, now: datetime) -> Callable[[PartitionKey], datetime]:
    """Return a function: when the day of a partition ended in the time zone of the account. The time zone of models,
    and of customers that left the configuration, is UTC."""
    offsets = {customer.id: utc_offset(now, customer.time_zone) for customer in settings.customers}

    def due_at(key: PartitionKey) -> datetime:
        offset = 0 if key.kind is AssetKind.DERIVED else offsets.get(key.customer_id, 0)
        return datetime.combine(key.logical_date, time.min, UTC) + timedelta(days=1, seconds=-offset)

    return due_at


def _of_model(models: Derived, key: PartitionKey) -> ExpectedRange:
    found = models.ranges(key.query_name).get(key.customer_id)
    if found is None:
        raise UsageError(f"{key}: no input table of {key.asset} expects this customer")
    return found


def _only(settings: Settings, models: Derived, key: PartitionKey, days: LocalDays) -> ExpectedRange:
    if key.kind is AssetKind.DERIVED:
        return replace(_of_model(models, key), first=key.logical_date, last=key.logical_date)
    day, today = key.logical_date, days.of(key.source, settings.customer(key.customer_id).time_zone)
    return ExpectedRange(
        key.source, key.customer_id, key.query_name, day, day, today.over, today.utc_offset, today.frozen_before
    )


def _ranges(settings: Settings, query: Query, selection: Selection, days: LocalDays) -> Iterator[ExpectedRange]:
    """The selected days of each customer of a query; the range of a customer without such days is empty."""
    asked, named = None if query.customers is None else set(query.customers), set(selection.customers)
    for customer in settings.customers:
        if (asked is None or customer.id in asked) and (not named or customer.id in named):
            yield _range(query, customer, selection, days)


def _range(query: Query, customer: Customer, selection: Selection, days: LocalDays) -> ExpectedRange:
    first, today = _first_day(query, customer), days.of(query.source, customer.time_zone)
    if selection.since is not None and selection.since > first:
        first = selection.since
    last = today.over
    if customer.active_to is not None and customer.active_to < last:
        last = customer.active_to
    if selection.until is not None and selection.until < last:
        last = selection.until
    return ExpectedRange(
        query.source, customer.id, query.name, first, last, today.over, today.utc_offset, today.frozen_before
    )


def _first_day(query: Query, customer: Customer) -> date:
    start, active_from = query.start_date, customer.active_from
    if start is not None and active_from is not None:
        return max(start, active_from)
    found = start or active_from
    if found is None:
        raise ConfigError(
            f"queries.{query.name} has no start_date and customer {customer.id} no active_from:"
            " give at least one of them: it is the first expected day"
        )
    return found


def _asks(query: Query, customer: Customer) -> bool:
    return query.customers is None or customer.id in query.customers


def refuse_unknown(settings: Settings, selection: Selection) -> None:
    """Raise UsageError if a selection names a source, customer, query or key that the configuration does not have."""
    named_sources = {selection.source} if selection.source else set()
    sources = {*settings.sources, MODELS} if settings.models else set(settings.sources)
    _known("source", named_sources | {key.source for key in selection.keys}, sources)
    _known("query", {*selection.queries, *(key.query_name for key in selection.keys)}, settings.assets)
    customers = {customer.id for customer in settings.customers} | ({ALL_CUSTOMERS} if settings.models else set())
    _known("customer", {*selection.customers, *(key.customer_id for key in selection.keys)}, customers)
    for key in selection.keys:
        asset = settings.asset(key.query_name)
        if asset.source != key.source:
            raise UsageError(f"{key}: the query {key.query_name} belongs to source {asset.source}, not {key.source}")
        if isinstance(asset, Query) and not _asks(asset, settings.customer(key.customer_id)):
            raise UsageError(f"{key}: the query {key.query_name} does not fetch customer {key.customer_id}")
        if isinstance(asset, Model) and asset.per_customer == (key.customer_id == ALL_CUSTOMERS):
            example = "a customer's id" if asset.per_customer else f"{ALL_CUSTOMERS!r}"
            raise UsageError(f"{key}: {key.asset} has one partition per {asset.per}: write {example} as the customer")


def _known(what: str, named: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(named).difference(known)):
        names = sorted(known)
        listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise UsageError(f"unknown {what} {', '.join(unknown)} (known: {listed or 'none'})")


def _date(text: str | None) -> date | None:
    return date.fromisoformat(text) if text else None


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value

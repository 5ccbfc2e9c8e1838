"""Synchronises the workspace's list of customers with the accounts that a source serves."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from tempfile import NamedTemporaryFile

import pydantic

from penstock.clock import last_day_over
from penstock.config.settings import WORKSPACE_FILE, Customer, Settings
from penstock.errors import ActRefused, ConfigError, StateConflict
from penstock.source.protocol import Account
from penstock.source.registry import hooks_of

_BYTE_ORDER_MARK = "\ufeff"


class ChangeKind(StrEnum):
    NEW = "new"  # the source serves it, and the workspace does not list it
    RENAMED = "renamed"
    MOVED = "moved"  # lives in another time zone
    GONE = "gone"  # listed, and no longer served: it gets an end date, and is never deleted


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `cells` are the new values of the customer's row."""

    id: str
    kind: ChangeKind
    before: str
    after: str
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CustomerPlan:
    """The changes of a sync: the file before and after."""

    file: Path
    before: str
    after: str
    changes: tuple[Change, ...]
    ended: tuple[str, ...]  # customers that the source serves although their end date is past


def plan_customers(settings: Settings, source: str, found: Sequence[Account], now: datetime) -> CustomerPlan:
    """Compare the accounts of the source with the list, and return the list with the differences applied. Raises
    ActRefused if the source lists no account, ConfigError if the workspace has not exactly one list."""
    if not found:
        raise ActRefused(
            f"{source} lists no account that matches, so nothing is changed:"
            " check login_customer_id, --levels and --status"
        )
    normalise = _normaliser(settings, source)
    file = _only_file(settings, normalise)
    text = file.read_bytes().decode()
    changes = tuple(compare(settings.customers, _served(settings, source), found, now))
    there = {account.id for account in found}
    ended = tuple(c.id for c in settings.customers if c.id in there and _is_past(c.active_to, c, now))
    return CustomerPlan(file, text, rewritten(text, changes, normalise) if changes else text, changes, ended)


def compare(listed: Sequence[Customer], served: Iterable[str], found: Sequence[Account], now: datetime) -> list[Change]:
    """The new, renamed, moved and gone customers. Of `listed`, only the `served` ones can be gone; an end date that a
    person gave stays."""
    known = {customer.id: customer for customer in listed}
    there = {account.id: account for account in found}
    changes: list[Change] = []
    for account in found:
        changes += _changes(known.get(account.id), account)
    for customer_id in sorted(set(served) & set(known) - set(there)):
        customer = known[customer_id]
        if customer.active_to is None:
            last = _last_day(customer, now).isoformat()
            changes.append(Change(customer_id, ChangeKind.GONE, customer.name, last, {"active_to": last}))
    return changes


def rewritten(text: str, changes: Sequence[Change], normalise: Callable[[str], str]) -> str:
    """The list with these changes: other cells, the order of rows and columns and the line ends stay as they are.
    `normalise` returns the id of a row as partition keys have it."""
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    end = "\r\n" if "\r\n" in text else "\n"
    header, rows = _table(text)
    needed = dict.fromkeys(column for change in changes for column in change.cells)
    header += [column for column in needed if column not in header]
    cells: dict[str, dict[str, str]] = {}
    for change in changes:
        cells.setdefault(change.id, {}).update(change.cells)
    place = header.index("id")
    made = [_with(header, row, cells.pop(normalise(row[place].strip()), {})) for row in rows]
    made += [_with(header, [], {"id": customer_id, **values}) for customer_id, values in cells.items()]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end).writerows([header, *made])
    return mark + out.getvalue()


def write_customers(plan: CustomerPlan) -> None:
    """Replace the list atomically. Raises StateConflict if the file changed since it was read."""
    file = plan.file.resolve()
    with NamedTemporaryFile(
        "w", encoding="utf-8", newline="", dir=file.parent, prefix=f".{file.name}.", delete=False
    ) as new:
        try:
            new.write(plan.after)
            new.flush()
            os.fsync(new.fileno())
            shutil.copymode(file, new.name)
            if file.read_bytes().decode() != plan.before:
                raise StateConflict(f"{file} changed since the preview: run the command again")
            os.replace(new.name, file)
        except BaseException:
            os.unlink(new.name)
            raise


def _changes(customer: Customer | None, account: Account) -> list[Change]:
    name = " ".join(account.name.split())
    _refuse_unusable(account)
    if customer is None:
        cells = {"name": name, "time_zone": account.time_zone}
        return [Change(account.id, ChangeKind.NEW, "", f"{name} ({account.time_zone})", cells)]
    changes = []
    if name and name != customer.name:
        changes.append(Change(account.id, ChangeKind.RENAMED, customer.name, name, {"name": name}))
    if account.time_zone and account.time_zone != customer.time_zone:
        zone = account.time_zone
        changes.append(Change(account.id, ChangeKind.MOVED, customer.time_zone, zone, {"time_zone": zone}))
    return changes


def _refuse_unusable(account: Account) -> None:
    try:
        Customer(id=account.id, time_zone=account.time_zone or "UTC")
    except pydantic.ValidationError as error:
        reason = "; ".join(problem["msg"] for problem in error.errors(include_url=False))
        raise ConfigError(f"account {account.id} cannot be listed: {reason}") from None


def _is_past(day: date | None, customer: Customer, now: datetime) -> bool:
    return day is not None and day < last_day_over(now, customer.time_zone)


def _last_day(customer: Customer, now: datetime) -> date:
    over = last_day_over(now, customer.time_zone)
    return max(over, customer.active_from) if customer.active_from else over


def _served(settings: Settings, source: str) -> set[str]:
    """The listed customers that a query of this source fetches."""
    asked: set[str] = set()
    for query in settings.queries_of(source):
        asked |= {customer.id for customer in settings.customers} if query.customers is None else set(query.customers)
    return asked


def _normaliser(settings: Settings, source: str) -> Callable[[str], str]:
    """Normalise the ids of a list that also holds customers of other sources: an id that `source` does not accept
    stays as it is."""
    hook = hooks_of(settings.sources[source].kind).normalise_customer

    def normalise(text: str) -> str:
        try:
            return text if hook is None else hook(text)
        except ValueError:
            return text

    return normalise


def _only_file(settings: Settings, normalise: Callable[[str], str]) -> Path:
    files = settings.customer_files
    if len(files) != 1:
        raise ConfigError(
            f"{WORKSPACE_FILE} names {len(files)} lists of customers, one is needed: write `customers: customers.csv`"
            " there, and into that file a first line such as id,name,time_zone,active_from,active_to and the customers"
        )
    header, rows = _table(files[0].read_bytes().decode())
    inside = {normalise(row[header.index("id")].strip()) for row in rows}
    if outside := [customer.id for customer in settings.customers if customer.id not in inside]:
        raise ConfigError(
            f"customers are listed outside {files[0].name} as well, for example {outside[0]}: move them into it first"
        )
    return files[0]


def _table(text: str) -> tuple[list[str], list[list[str]]]:
    """The columns and the rows that are not blank. They are well formed: the settings were loaded from them."""
    read = csv.reader(io.StringIO(text.removeprefix(_BYTE_ORDER_MARK), newline=""))
    header, *rows = [row for row in read if any(cell.strip() for cell in row)]
    return [cell.strip() for cell in header], rows


def _with(header: Sequence[str], row: Sequence[str], cells: Mapping[str, str]) -> list[str]:
    padded = [*row, *[""] * (len(header) - len(row))]
    return [cells.get(column, cell) for column, cell in zip(header, padded, strict=True)]

"""Remembers the validated customers of a workspace file: reading ten thousand of them takes most of a short command.

Only customers are stored: ids, names, time zones and days. No other part of the workspace file reaches the cache, and
neither does a value of the environment: nothing is stored if the customers, or the names of the files that they come
from, contain variables. All other keys of the workspace file are read and validated each time.

An entry is valid for files of exactly the same bytes, read by the same code.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import orjson

from penstock import __version__
from penstock.config.file import Document, KnownFiles
from penstock.config.settings import Customer, Settings
from penstock.user_cache import UserCache

_FORMAT = 1
_FEWEST = 100  # fewer customers are read faster than looked up
_SECTIONS = ("customers", "include")  # a variable in them may decide which customers there are
_LINE_BREAKS = "\x85\u2028\u2029"  # of YAML, beside the usual one: lines could not be counted


@dataclass(frozen=True, slots=True)
class KnownCustomers:
    """The customers of files that were read before, in their order."""

    files: KnownFiles
    written: Sequence[str]  # the ids as the files have them
    ids: Sequence[str]  # as the sources normalised them
    names: Sequence[str]
    zones: Sequence[str]
    first_days: Sequence[str | None]
    last_days: Sequence[str | None]

    def customers(self) -> tuple[Customer, ...]:
        """The customers as settings. Raises ValueError or OSError if a time zone is not known any more."""
        for zone in set(self.zones):
            ZoneInfo(zone)
        rows = zip(self.ids, self.names, self.zones, self.first_days, self.last_days, strict=True)
        return tuple(
            Customer.model_construct(id=id_, name=name, time_zone=zone, active_from=_day(first), active_to=_day(last))
            for id_, name, zone, first, last in rows
        )


@cache
def _day(text: str | None) -> date | None:
    return None if text is None else date.fromisoformat(text)


def recall(cache: UserCache, file: Path) -> KnownCustomers | None:
    """The customers that were stored for a workspace file; None if there are none. The files may have changed since:
    whoever reads them compares their digests."""
    data = cache.read(_name(file))
    if data is None:
        return None
    try:
        entry = orjson.loads(data)
        if entry.pop("stamp") != _stamp():
            return None
        spans = {path: (int(first), int(last)) for path, (first, last) in entry.pop("spans").items()}
        return KnownCustomers(KnownFiles(entry.pop("digests"), spans), **entry)
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None


def known_customers(document: Document, written: Sequence[str], settings: Settings) -> KnownCustomers | None:
    """What can be stored of a document that was read and validated; None if nothing should be."""
    found = settings.customers
    if len(found) < _FEWEST or len(found) != len(written) or document.has_variables(_SECTIONS):
        return None
    if any(mark in text for text in document.customer_texts() for mark in _LINE_BREAKS):
        return None
    return KnownCustomers(
        document.files,
        written,
        [one.id for one in found],
        [one.name for one in found],
        [one.time_zone for one in found],
        [None if one.active_from is None else one.active_from.isoformat() for one in found],
        [None if one.active_to is None else one.active_to.isoformat() for one in found],
    )


def remember(cache: UserCache, file: Path, known: KnownCustomers) -> None:
    """Store the customers of a workspace file."""
    entry = {name: getattr(known, name) for name in KnownCustomers.__slots__ if name != "files"}
    entry |= {"digests": known.files.digests, "spans": known.files.spans, "stamp": _stamp()}
    cache.write(_name(file), orjson.dumps(entry))


def _name(file: Path) -> str:
    return f"customers-{hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:32]}"


@cache
def _stamp() -> str:
    """Identifies the code that validates customers. Raises OSError if its files cannot be found."""
    modules = sorted(Path(__file__).parent.glob("*.py"))
    code = [(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in modules]
    return f"{_FORMAT} {__version__} {sys.version} {hashlib.sha256(repr(code).encode()).hexdigest()}"

"""The protocol of a source: a class that fetches many days of one customer in one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from penstock.config.assets import Query
from penstock.config.settings import Customer
from penstock.errors import PenstockError
from penstock.partition import RunId
from penstock.source.budget import Budget


class Complete(Enum):
    """Yielded in place of a row: all rows of this day were received."""

    COMPLETE = "complete"


COMPLETE = Complete.COMPLETE

# A row is a mapping, or one line of JSON that the source received as bytes. In place of a row a source may yield an
# error: then only that day has failed, and the span continues.
Row = Mapping[str, Any] | bytes | PenstockError | Complete


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run that a source works for, its request budget, and its warnings."""

    run_id: RunId
    budget: Budget = field(default_factory=Budget, compare=False)
    warnings: set[str] = field(default_factory=set, compare=False)

    def warn(self, text: str) -> None:
        """Report a fact that fails nothing and that the operator should know, such as the announced end of an API. The
        run shows each text once."""
        self.warnings.add(text)


@dataclass(frozen=True, slots=True)
class Account:
    """A customer as its source lists it."""

    id: str
    name: str
    time_zone: str


class Source(Protocol):
    """Created once per worker task, from the options of the workspace file. Raises ConfigError for invalid options.

    `extract` raises a PenstockError when the whole span fails; days that are complete by then are kept. A day is
    complete after COMPLETE, or when `in_date_order` is true and a row of a later day was yielded.

    Several objects of the class may work concurrently, in threads of one process, so shared state must be thread-safe.
    Before each request a source calls `context.budget.spend()`, which waits as long as the `rate` in the workspace file
    requires.

    A source may also have `refuse(query)`, which raises a ConfigError for a query that it cannot fetch: it is
    called before attempts are issued. It may implement Lister and Probed.

    Six hooks of the class are optional. Commands that only read state use them too, so importing the module must be
    cheap: a class that needs a client library imports it inside of functions.

    - `keeps`, a `penstock.config.values.Keeps`: how long the source keeps a day. Older partitions are
      frozen. `sources.<name>.keeps` in the workspace file replaces it.
    - `normalise_customer(text)`, a static method: returns the customer id as partition keys have it, and raises a
      ValueError with the rule ("must be digits") for an id that the source cannot have.
    - `title`: the service as messages name it; the name of the source by default.
    - `requests_in_flight(options)`, a static method: the requests that a run keeps in flight if the workspace file has
      no `parallelism`. Without it, one for each core.
    - `asks_by_day(options, query)`, a static method: whether each day of a span is a separate request. Then a run
      divides long spans to keep all its requests in flight.
    - `api_end(options)`, a static method: the version of the API in use, and the day from which the service refuses it,
      or None. `status`, `doctor`, runs and the alert `api_end` warn in time.
    """

    in_date_order: bool
    api_version: str

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None: ...

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]: ...


@runtime_checkable
class Lister(Protocol):
    """A source that can list the customers that it serves."""

    def accounts(self, levels: int, statuses: Sequence[str]) -> list[Account]:
        """The accounts with one of these statuses, down to a level below the manager account."""


@runtime_checkable
class Probed(Protocol):
    """A source that can check the folders and addresses that it reads. `penstock doctor` calls it."""

    def probe(self, queries: Sequence[Query], seconds: float) -> list[str]:
        """The problems, each with what to do; empty if there are none. Fetches no rows, and takes a few seconds at most
        for each address. `refuse` accepted the queries."""

"""Options that many commands share, each declared once, and groups of options that a command takes as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from penstock.cli import completion
from penstock.errors import UsageError
from penstock.lifecycle import PartitionStatus

if TYPE_CHECKING:
    from penstock.control.select import Selection
    from penstock.partition import PartitionKey

MOST_LINES = 1_000_000_000
LAST_ID = 2**63 - 1  # the largest number that the database holds

WorkspaceDir = Annotated[
    str, typer.Option("--workspace", metavar="DIR", help="The folder of the workspace (default: this one or a parent).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the changes.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Force = Annotated[bool, typer.Option("--force", help="Allow more than 10,000 partitions at once.")]
ActorName = Annotated[str | None, typer.Option("--actor", help="The actor, for the audit log (default: the OS user).")]

Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="source/customer_id/query_name/YYYY-MM-DD")]
OneKey = Annotated[str, typer.Argument(metavar="KEY", help="source/customer_id/query_name/YYYY-MM-DD")]
SourceName = Annotated[
    str | None, typer.Option("--source", help="Only this source.", autocompletion=completion.sources)
]
Customers = Annotated[
    list[str] | None,
    typer.Option(
        "--customer", metavar="ID", help="Only this customer; repeatable.", autocompletion=completion.customers
    ),
]
Queries = Annotated[
    list[str] | None,
    typer.Option("--query", metavar="NAME", help="Only this query; repeatable.", autocompletion=completion.queries),
]
OnDate = Annotated[str | None, typer.Option("--date", metavar="D", help="Only this day.")]
Since = Annotated[str | None, typer.Option("--since", metavar="D", help="From this day.")]
Until = Annotated[str | None, typer.Option("--until", metavar="D", help="Up to and including this day.")]
Status = Annotated[
    str | None,
    typer.Option("--status", metavar="S", help="pending, success or failed.", autocompletion=completion.statuses),
]
Plan = Annotated[bool, typer.Option("--dry-run", "--plan", help="Only show the plan, by reason.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MOST_LINES, help="At most this many lines.")]
RowLimit = Annotated[int | None, typer.Option("--limit", min=0, max=MOST_LINES, help="At most this many rows.")]
LineLimit = Annotated[int | None, typer.Option("--limit", min=0, max=MOST_LINES, help="At most this many lines.")]
After = Annotated[str | None, typer.Option("--after", metavar="KEY", help="Continue after this partition key.")]
Reprocess = Annotated[bool, typer.Option("--reprocess", help="Also fetch success partitions again.")]
WithoutRaw = Annotated[
    bool, typer.Option("--without-raw", help="Include partitions whose attempts left nothing in the raw sink.")
]
AfterRun = Annotated[str | None, typer.Option("--after", metavar="RUN", help="Continue with runs older than this one.")]
AfterLoad = Annotated[
    str | None,
    typer.Option("--after", metavar="KEY[/RUN]", help="Continue after this partition, or this run of it."),
]
AfterId = Annotated[str | None, typer.Option("--after", metavar="ID", help="Continue after this id.")]
AfterEntry = Annotated[
    int | None,
    typer.Option("--after", metavar="ID", min=1, max=LAST_ID, help="Continue with entries older than this one."),
]
AfterPosition = Annotated[
    int | None,
    typer.Option("--after", metavar="POSITION", min=0, max=LAST_ID, help="Only events after this position."),
]


def _not_blank(text: str | None) -> str | None:
    from penstock.state.audited import refuse_blank

    refuse_blank(text)
    return text


_REASON = typer.Option(
    "--reason", metavar="TEXT", help="The reason, for the audit log and `penstock why`.", callback=_not_blank
)
Reason = Annotated[str | None, _REASON]
RequiredReason = Annotated[str, _REASON]


@dataclass(frozen=True)
class OptionGroup:
    """Options that a command takes as one parameter; each field is the declaration of one option or argument."""


@dataclass(frozen=True)
class TableFilters(OptionGroup):
    """The filters of commands that name a table: customers and days."""

    customers: Customers = None
    date: OnDate = None
    since: Since = None
    until: Until = None

    def selection(self) -> Selection:
        """Return the filters as a value. Raises UsageError for empty or contradictory ones."""
        return _selection(None, None, self.customers, None, self.date, self.since, self.until, None)


@dataclass(frozen=True)
class PartitionFilters(OptionGroup):
    """Partitions, by key or by source, customer, query and days."""

    keys: Keys = None
    source: SourceName = None
    customers: Customers = None
    queries: Queries = None
    date: OnDate = None
    since: Since = None
    until: Until = None

    def selection(self) -> Selection:
        """Return the filters as a value. Raises UsageError for empty or contradictory ones."""
        return self._selection_of(None)

    def _selection_of(self, status: str | None) -> Selection:
        return _selection(
            self.keys, self.source, self.customers, self.queries, self.date, self.since, self.until, status
        )


@dataclass(frozen=True)
class Filters(PartitionFilters):
    """Partitions, by key or by source, customer, query, days and status."""

    status: Status = None

    def selection(self) -> Selection:
        """Return the filters as a value. Raises UsageError for empty or contradictory ones."""
        return self._selection_of(self.status)


@dataclass(frozen=True)
class ChangeOptions(OptionGroup):
    """The options of commands that change many partitions: preview, confirmation and actor."""

    dry_run: DryRun = False
    yes: Yes = False
    force: Force = False
    actor: ActorName = None

    @property
    def flags(self) -> dict[str, bool]:
        """The options of the confirmation, for the audit log."""
        return {"yes": self.yes, "force": self.force}


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the fields of its option groups as parameters, which is what Typer expects.

    The command itself receives each group as one value. A group in the signature must have no default.
    """
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded


def _parameters(group: type[OptionGroup]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def select_key(text: str) -> Selection:
    """Return the selection of one partition by its key."""
    from penstock.control.select import Selection
    from penstock.partition import PartitionKey

    return Selection((PartitionKey.parse(text),))


def _selection(
    keys: list[str] | None,
    source: str | None,
    customers: list[str] | None,
    queries: list[str] | None,
    date: str | None,
    since: str | None,
    until: str | None,
    status: str | None,
) -> Selection:
    from penstock.control.filters import customer_ids, day_range
    from penstock.control.select import Selection
    from penstock.partition import PartitionKey

    named = {"--source": source, "--date": date, "--since": since, "--until": until, "--status": status}
    if empty := [option for option, value in named.items() if value == ""]:
        raise UsageError(f"{', '.join(empty)} is empty: leave it out, or give it a value")
    if keys and any((source, customers, queries, date, since, until)):
        raise UsageError("name partitions either by key or by filters, not both")
    first, last = day_range(date, since, until)
    return Selection(
        tuple(sorted({PartitionKey.parse(key) for key in keys or ()})),
        source,
        customer_ids(customers),
        tuple(queries or ()),
        first,
        last,
        _status(status),
    )


def after_key(text: str | None) -> PartitionKey | None:
    """Return the key of `--after`. Raises UsageError if it is not a key."""
    from penstock.partition import PartitionKey

    return None if text is None else PartitionKey.parse(text)


def _status(text: str | None) -> PartitionStatus | None:
    if text is None:
        return None
    try:
        return PartitionStatus(text)
    except ValueError:
        raise UsageError(f"--status {text!r} is unknown: use {', '.join(PartitionStatus)}") from None

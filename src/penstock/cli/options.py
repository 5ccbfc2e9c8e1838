"""Options that many commands share, declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import completion
from penstock.errors import UsageError
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey

if TYPE_CHECKING:
    from penstock.control.select import Selection

MOST_LINES = 1_000_000_000
LAST_ID = 2**63 - 1  # the largest number that the database holds

WorkspaceDir = Annotated[
    str, typer.Option("--workspace", metavar="DIR", help="Where the workspace is (default: here or above).")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would change.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Force = Annotated[bool, typer.Option("--force", help="Allow more than 10,000 partitions at once.")]
ActorName = Annotated[str | None, typer.Option("--actor", help="Who acts, for the audit log (default: the OS user).")]

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
Since = Annotated[str | None, typer.Option("--since", metavar="D", help="From this day on.")]
Until = Annotated[str | None, typer.Option("--until", metavar="D", help="Up to and including this day.")]
Status = Annotated[
    str | None,
    typer.Option("--status", metavar="S", help="pending, success or failed.", autocompletion=completion.statuses),
]
Plan = Annotated[bool, typer.Option("--dry-run", "--plan", help="Only show what would be attempted, by reason.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MOST_LINES, help="At most this many lines.")]
RowLimit = Annotated[int | None, typer.Option("--limit", min=0, max=MOST_LINES, help="At most this many rows.")]
LineLimit = Annotated[int | None, typer.Option("--limit", min=0, max=MOST_LINES, help="At most this many lines.")]
After = Annotated[str | None, typer.Option("--after", metavar="KEY", help="Continue after this partition key.")]
WithoutRaw = Annotated[
    bool, typer.Option("--without-raw", help="Also partitions whose attempts left nothing in the raw sink.")
]
AfterRun = Annotated[str | None, typer.Option("--after", metavar="RUN", help="Continue after this run: older ones.")]
AfterLoad = Annotated[
    str | None, typer.Option("--after", metavar="KEY[/RUN]", help="Continue after this partition, or this run of it.")
]
AfterId = Annotated[str | None, typer.Option("--after", metavar="ID", help="Continue after this one.")]
AfterEntry = Annotated[
    int | None,
    typer.Option("--after", metavar="ID", min=1, max=LAST_ID, help="Continue after this entry: older ones."),
]
AfterPosition = Annotated[
    int | None,
    typer.Option("--after", metavar="POSITION", min=0, max=LAST_ID, help="The next events after this one."),
]


def selection(
    keys: list[str] | None = None,
    source: str | None = None,
    customers: list[str] | None = None,
    queries: list[str] | None = None,
    date: str | None = None,
    since: str | None = None,
    until: str | None = None,
    status: str | None = None,
) -> Selection:
    """The filters of a command as a value. Keys and filters exclude each other."""
    from penstock.control.filters import customer_ids, day_range
    from penstock.control.select import Selection

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
    return None if text is None else PartitionKey.parse(text)


def _status(text: str | None) -> PartitionStatus | None:
    if text is None:
        return None
    try:
        return PartitionStatus(text)
    except ValueError:
        raise UsageError(f"--status {text!r} is unknown: use {', '.join(PartitionStatus)}") from None

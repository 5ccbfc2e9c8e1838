"""The question whether tables are ready, and its answer in lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.client import Client

_LINES = 20  # days that a message lists


@dataclass(frozen=True, slots=True)
class ReadyQuestion:
    """Which days of which tables must be ready, by which rule. Its fields are JSON values."""

    tables: Sequence[str]
    require: str = "all"
    date: str | None = None
    since: str | None = None
    until: str | None = None
    customers: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields, as a trigger stores them."""
        return {**asdict(self), "tables": list(self.tables), "customers": list(self.customers)}

    def ask(self, client: Client, *, explain: bool = False) -> dict[str, Any]:
        """The document of `penstock ready`; with `explain`, also what is missing by cause."""
        return client.ready(
            *self.tables,
            require=self.require,
            explain=explain,
            date=self.date,
            since=self.since,
            until=self.until,
            customer=list(self.customers),
        )

    def answer(self, client: Client) -> Answer:
        """The answer now. What is missing is explained by a second request, only if something is."""
        found = self.ask(client)
        if found["ready"]:
            return Answer(True, found)
        found = self.ask(client, explain=True)
        return Answer(bool(found["ready"]), found)


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether the tables are ready, with the document of the server."""

    ready: bool
    document: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        """What the XCom of the sensor has: each table with its expected and available partitions."""
        names = ("table", "ready", "expected", "available", "since", "until")
        tables = [{name: table[name] for name in names} for table in self.document["tables"]]
        return {"ready": self.ready, "require": self.document["require"], "tables": tables}

    def missing(self) -> list[str]:
        """A line for each day that is not ready: what is missing by cause, and when it is expected."""
        explained = {(day["table"], day["date"]): day for day in self.document.get("explained") or ()}
        lines = []
        for table in self.document["tables"]:
            lines += [f"{table['table']}: {note}" for note in table["notes"]]
            for day in table["days"]:
                if not day["ready"]:
                    reasons = explained.get((table["table"], day["date"]))
                    lines.append(_line(table["table"], day, reasons))
        more = len(lines) - _LINES
        return lines if more <= 0 else [*lines[:_LINES], f"... and {more} more"]


def _line(table: str, day: dict[str, Any], reasons: dict[str, Any] | None) -> str:
    text = f"{table} {day['date']}: {day['available']} of {day['expected']} partitions"
    if reasons is None:
        return f"{text}, absent: {', '.join(day['absent'][:3])}"
    if reasons["required"] != reasons["expected"]:
        text += f" ({reasons['required']} required)"
    causes = "; ".join(_cause(one) for one in reasons["missing"])
    at = f"; expected at {reasons['expected_at']}" if reasons["expected_at"] else ""
    return f"{text}, missing: {causes}{at}"


def _cause(one: dict[str, Any]) -> str:
    until = f" until {one['until']}" if one["until"] else ""
    example = f", for example {one['example']}" if one["example"] else ""
    detail = f" ({one['detail']})" if one["detail"] else ""
    return f"{one['count']} {one['cause'].replace('_', ' ')}{until}{example}{detail}"

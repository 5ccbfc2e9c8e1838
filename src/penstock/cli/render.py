"""One way out for text and JSON: a command makes a document, this module shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.clock import iso

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.partition import PartitionKey
    from penstock.warehouse.mismatch import Mismatch


T = TypeVar("T")


def key_fields(key: PartitionKey) -> dict[str, Any]:
    """How a partition names itself in every JSON document."""
    return {
        "key": str(key),
        "source": key.source,
        "customer_id": key.customer_id,
        "query_name": key.query_name,
        "logical_date": key.logical_date,
    }


def listing(items: Sequence[Mapping[str, Any]], total: int) -> dict[str, Any]:
    return {"items": list(items), "total": total}


def page(items: Sequence[Mapping[str, Any]], total: int, following: str | None) -> dict[str, Any]:
    """A part of a long list: `next` is what `--after` takes to continue, None at the end."""
    return {**listing(items, total), "next": following}


def cut(found: Sequence[T], limit: int, name: Callable[[T], Any]) -> tuple[Sequence[T], str | None]:
    """The first `limit` rows, and the name of the last one if more follow. Needs one row more than is shown."""
    shown = found[:limit]
    return shown, str(name(shown[-1])) if len(found) > limit else None


def draw_more(console: Console, shown: int, total: int, following: str | None) -> None:
    """How much of a long list is shown, and how to continue."""
    more = f"; continue with --after {following}" if following else ""
    console.print(f"{shown:,} of {total:,}{more}", soft_wrap=True)  # to be copied whole


def mismatch_items(found: Sequence[Mismatch]) -> list[dict[str, Any]]:
    """Disagreements between the lake and the state database, as every JSON document lists them."""
    return [{"kind": one.kind, "table": one.table, "message": one.message} for one in found]


def draw_mismatches(console: Console, found: Sequence[Mismatch]) -> None:
    from penstock.warehouse.mismatch import messages

    for line in messages(found):
        console.print(line, style="red")


LISTED = 100  # so many partitions are named by a preview


def draw_keys(console: Console, keys: Sequence[PartitionKey], total: int | None = None) -> None:
    """The partitions that an act is about, a line each; of many the first ones. `total` if `keys` are only some."""
    for key in keys[:LISTED]:
        console.print(f"  {key}")
    if (more := (len(keys) if total is None else total) - LISTED) > 0:
        console.print(f"  ... and {more:,} more")


def show(document: Mapping[str, Any], as_json: bool, text: Callable[[Console], None]) -> None:
    """Print `document` as JSON, or let `text` draw it."""
    if as_json:
        import orjson

        sys.stdout.buffer.write(orjson.dumps(_plain(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        sys.stdout.flush()
    else:
        text(console())


def show_line(document: Mapping[str, Any]) -> None:
    """Print `document` as one line of JSON, at once."""
    import orjson

    sys.stdout.buffer.write(orjson.dumps(_plain(document), option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


def console() -> Console:
    """Standard output. Lines are wrapped between words, and no word is cut or broken, however narrow the terminal. Text
    is printed as it is: names, reasons and errors come from outside and may look like markup or emoji codes."""
    from rich.console import Console
    from rich.text import Text

    from penstock.cli.tables import longest_word

    class WholeWords(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            lines = [line for text in objects if isinstance(text, str | Text) for line in str(text).splitlines()]
            fits = max(map(longest_word, lines), default=0) <= self.width and not options.get("soft_wrap")
            super().print(*objects, **{"crop": False, "overflow": "fold" if fits else "ignore", **options})

    # Without a terminal (pipes, CI) lines have room; whoever sets COLUMNS means it.
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return WholeWords(highlight=False, markup=False, emoji=False, width=None if narrow else 200)


def note(message: str) -> None:
    """A line for people, beside the answer."""
    import typer

    typer.echo(message, err=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value

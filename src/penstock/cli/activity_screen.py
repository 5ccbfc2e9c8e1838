"""The screen of `penstock top`: lines of text that fit into 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.plural import counted

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.views.document import Document

_BAR = 24  # columns
_COLOURS = {"running": "green", "cancelling": "yellow", "lost": "red", "finished": "bright_black"}
_LINES_OF_RUN = 4
_LINES_BESIDE = 4  # the title, the count of other runs, an empty line, and the keys


def screen(document: Document, name: str, height: int | None) -> Iterator[Text]:
    """The lines of the screen. Runs that do not fit into `height` lines are counted; None shows all."""
    from rich.text import Text

    at = str(document["at"])[:19].replace("T", " ")
    yield Text(f"{name}   {at} UTC", "bold")
    runs, summary = document["runs"], list(_summary(document))
    room = len(runs) if height is None else max(1, (height - _LINES_BESIDE - len(summary)) // _LINES_OF_RUN)
    for run in runs[:room]:
        yield from _run(run)
    if not runs:
        yield Text(f"no run in progress or in the last {document['window_minutes']} minutes", "bright_black")
    if len(runs) > room:
        yield Text(f"... and {counted(len(runs) - room, 'more run')}: `penstock runs list` shows them")
    yield Text("")
    yield from summary


def _run(run: Mapping[str, Any]) -> Iterator[Text]:
    from rich.text import Text

    line = Text(f"{run['run_id']}  ", "bold")
    line.append(run["state"], _COLOURS[run["state"]])
    stage = f", {run['stage']}" if run["stage"] and run["state"] != "finished" else ""
    line.append(f"{stage}, {_duration(run['seconds'])}, by {run['actor']}", "default")
    line.truncate(80, overflow="ellipsis")
    yield line
    judged, total = run["accepted"] + run["rejected"], run["planned"]
    rejected = f", {run['rejected']:,} rejected" if run["rejected"] else ""
    cancelled = f", {run['cancelled']:,} cancelled" if run["cancelled"] else ""
    rate = f", {run['last_minute']:,}/min" if run["state"] == "running" else ""
    fetched = max(run["extracted"] + run["extract_failed"], judged)  # a model is judged without being extracted
    yield _stage("extract", fetched, total, cancelled)
    yield _stage("validate", judged, total, f"{rejected}{rate}")
    yield _stage("publish", run["published"], total - run["rejected"] - run["cancelled"], "")


def _stage(name: str, done: int, total: int, note: str) -> Text:
    from rich.text import Text

    filled = min(_BAR, _BAR * done // total) if total else 0
    line = Text(f"  {name:<9}")
    line.append("█" * filled, "green")
    line.append("·" * (_BAR - filled), "bright_black")
    line.append(f"  {done:,} of {total:,}{note}", "default")
    return line


def _summary(document: Document) -> Iterator[Text]:
    from rich.text import Text

    minutes = document["window_minutes"]
    yield Text(
        f"partitions  {document['last_minute']:,} in the last minute, {document['per_minute']:,.1f} per minute in the"
        f" last {minutes}"
    )
    errors = [f"{one['count']:,} {one['error_class']} ({one['outcome'].lower()})" for one in document["errors"]]
    yield Text(f"errors      {', '.join(errors) or 'none'} in the last {minutes} minutes", "red" if errors else "")
    for one in document["quota"]:
        left = f"{one['left']:,} of {one['budget']:,} left in the {one['window']}"
        renews = f"renews {str(one['renews_at'])[11:16]} UTC"
        low = "yellow" if one["left"] * 10 < one["budget"] else ""
        yield Text(f"quota       {one['source']}: {left}, {renews}", low)
    orders = ", ".join(f"{count:,} {state}" for state, count in document["orders"].items() if count) or "none"
    oldest = document["oldest_order_seconds"]
    waits = f"; the oldest waits {_duration(oldest)}" if oldest is not None else ""
    yield Text(f"publish     {counted(document['publish_due'], 'partition waits', 'partitions wait')} for publication")
    yield Text(f"orders      {orders}{waits}")
    loops = document["control_loops"]
    lost = f", {loops['lost']} lost" if loops["lost"] else ""
    yield Text(f"loops       {loops['alive']} alive{lost}", "" if loops["alive"] else "yellow")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"

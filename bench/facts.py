"""Measurements of the control plane: the table for people, and the lines for scripts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.table import Table

from bench.report import circumstances

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Fact:
    """The time of one query or operation on one database."""

    backend: str
    what: str
    partitions: int
    seconds: float
    load_before: float
    stored: int | None = None  # a question: how many of the partitions had state
    plain_seconds: float | None = None  # for an act: the time of as many plain inserts in the same run

    def as_dict(self) -> dict[str, Any]:
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return known | {name: round(value, 5) for name, value in known.items() if isinstance(value, float)}


def show(console: Console, facts: Sequence[Fact]) -> None:
    questions, acts = ([f for f in facts if (f.stored is None) is acting] for acting in (False, True))
    if questions:
        console.print(_questions(questions))
    if acts:
        console.print(_acts(acts))


def json_lines(facts: Sequence[Fact]) -> bytes:
    """One line per measurement, with the machine."""
    known = circumstances()
    return b"".join(orjson.dumps(fact.as_dict() | known, option=orjson.OPT_APPEND_NEWLINE) for fact in facts)


def _questions(facts: Sequence[Fact]) -> Table:
    table = Table(title="planning, seconds", title_justify="left")
    table.add_column("question")
    backends = _distinct(fact.backend for fact in facts)
    for name in ("partitions", "with state", *backends):
        table.add_column(name, justify="right")
    for partitions, stored in _distinct((fact.partitions, fact.stored) for fact in facts):
        table.add_section()
        here = {
            (f.what, f.backend): f"{f.seconds:.3f}" for f in facts if (f.partitions, f.stored) == (partitions, stored)
        }
        for what in _distinct(what for what, _ in here):
            table.add_row(what, f"{partitions:,}", f"{stored:,}", *(here[what, backend] for backend in backends))
    return table


def _acts(facts: Sequence[Fact]) -> Table:
    """Beside each rate: the time of one act in plain inserts."""
    table = Table(title=f"acts on {facts[0].partitions:,} partitions, per second", title_justify="left")
    table.add_column("act")
    backends = _distinct(fact.backend for fact in facts)
    for name in (name for backend in backends for name in (backend, "in inserts")):
        table.add_column(name, justify="right")
    here = {(f.what, f.backend): f for f in facts}
    for what in _distinct(f.what for f in facts):
        table.add_row(what, *(cell for backend in backends for cell in _rate(here[what, backend])))
    return table


def _rate(act: Fact) -> tuple[str, str]:
    return f"{act.partitions / act.seconds:,.0f}", f"{act.seconds / (act.plain_seconds or act.seconds):.1f}"


def _distinct(values: Iterable[T]) -> list[T]:
    """Each value once, in the order of first occurrence."""
    return list(dict.fromkeys(values))

"""The outcome of a run, counted while its stages work concurrently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from penstock.errors import ErrorClass
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId


@dataclass(frozen=True, slots=True)
class Failure:
    """A partition that was not accepted or not published, and why."""

    key: PartitionKey
    stage: Stage
    error_class: ErrorClass
    message: str


_COUNTS = ("planned", "accepted", "rejected", "loaded", "hidden", "skipped", "cancelled", "unchanged")


@dataclass(slots=True)
class RunSummary:
    """The outcome of a run, or of several runs of one command; then `run_id` is that of the last."""

    run_id: RunId
    planned: int = 0
    accepted: int = 0
    rejected: int = 0
    loaded: int = 0
    hidden: int = 0
    skipped: int = 0
    blocked: int = 0  # not issued: a breaker is open, a model cannot be derived, or a check is not valid
    cancelled: int = 0
    unchanged: int = 0  # planned because their inputs might change, which did not
    warnings: int = 0  # complaints about accepted partitions
    seconds: float = 0.0
    end: str = "done"
    failures: list[Failure] = field(default_factory=list)  # rejected, or not publishable
    cancelled_items: list[Failure] = field(default_factory=list)  # closed without a verdict: they stay due
    waiting: dict[str, int] | None = None  # by cause, why partitions are not attempted; only if nothing was planned
    problems: list[str] = field(default_factory=list)  # errors of sources, models and checks
    unfinished: list[str] = field(default_factory=list)  # messages about killed runs that have partitions left
    in_flight: dict[str, int] = field(default_factory=dict)  # requests at a time at the end of the run, by source
    runs: list[RunId] = field(default_factory=list)  # the runs of one command, in their order
    is_divided: bool = False  # the plan was too large for one run
    is_stopped: bool = False  # the process stopped before the last run of a divided plan began
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def count(self, **more: int) -> None:
        """Add to counters. Safe to call from several threads."""
        with self._lock:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    def fail(self, failures: Iterable[Failure]) -> None:
        self.failures.extend(failures)

    def cancel(self, items: Iterable[Failure]) -> None:
        self.cancelled_items.extend(items)

    def add_problems(self, messages: Iterable[str | None]) -> None:
        with self._lock:
            self.problems += [one for one in dict.fromkeys(messages) if one and one not in self.problems]

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTS} | {"skipped": self.skipped + self.blocked}


def as_one(every: Sequence[RunSummary]) -> RunSummary:
    """The summary of several runs, with the run id of the last."""
    last = every[-1]
    found = RunSummary(last.run_id, end=last.end, runs=[one.run_id for one in every])
    for one in every:
        found.count(**{name: getattr(one, name) for name in (*_COUNTS, "blocked", "warnings")})
        found.cancel(one.cancelled_items)
        found.add_problems(one.problems)
        found.in_flight.update(one.in_flight)
    # each publication reports again what cannot be published
    found.fail(dict.fromkeys(failure for one in every for failure in one.failures))
    found.seconds = round(sum(one.seconds for one in every), 3)
    return found

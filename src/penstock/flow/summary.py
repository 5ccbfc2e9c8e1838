"""What became of a run, counted while its stages work side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from penstock.errors import ErrorClass
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId


@dataclass(frozen=True, slots=True)
class Failure:
    """A partition that did not make it, and why."""

    key: PartitionKey
    stage: Stage
    error_class: ErrorClass
    message: str


_COUNTS = ("planned", "accepted", "rejected", "loaded", "hidden", "skipped", "cancelled", "unchanged")


@dataclass(slots=True)
class RunSummary:
    """What became of a run; or of several that one command made, the last of which it is called after."""

    run_id: RunId
    planned: int = 0
    accepted: int = 0
    rejected: int = 0
    loaded: int = 0
    hidden: int = 0
    skipped: int = 0
    blocked: int = 0  # not issued: the source is in trouble, a model cannot be made, or a check is not valid
    cancelled: int = 0
    unchanged: int = 0  # planned because its inputs might change, and they did not
    warnings: int = 0  # complaints about accepted slices
    seconds: float = 0.0
    end: str = "done"
    failures: list[Failure] = field(default_factory=list)  # rejected, or not publishable
    cancelled_items: list[Failure] = field(default_factory=list)  # closed without a verdict: they stay due
    waiting: dict[str, int] | None = None  # what stands in the way of partitions; counted when nothing was planned
    troubles: list[str] = field(default_factory=list)  # of sources, models and checks, in words
    unfinished: list[str] = field(default_factory=list)  # killed runs that have partitions left, in words
    runs: list[RunId] = field(default_factory=list)  # those that one command made, in their order
    is_divided: bool = False  # the plan was too large for one run
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def count(self, **more: int) -> None:
        """Add to counters; the stages do so from threads of their own."""
        with self._lock:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    def fail(self, failures: Iterable[Failure]) -> None:
        self.failures.extend(failures)

    def cancel(self, items: Iterable[Failure]) -> None:
        self.cancelled_items.extend(items)

    def trouble(self, words: Iterable[str | None]) -> None:
        with self._lock:
            self.troubles += [word for word in dict.fromkeys(words) if word and word not in self.troubles]

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTS} | {"skipped": self.skipped + self.blocked}


def as_one(every: Sequence[RunSummary]) -> RunSummary:
    """Several runs as one, called after the last."""
    last = every[-1]
    found = RunSummary(last.run_id, end=last.end, runs=[one.run_id for one in every])
    for one in every:
        found.count(**{name: getattr(one, name) for name in (*_COUNTS, "blocked", "warnings")})
        found.cancel(one.cancelled_items)
        found.trouble(one.troubles)
    # what cannot be published is found again by each publication
    found.fail(dict.fromkeys(failure for one in every for failure in one.failures))
    found.seconds = round(sum(one.seconds for one in every), 3)
    return found

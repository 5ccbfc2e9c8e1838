"""The results of a soak: counts by kind, and violations as sentences. Safe to use from several threads."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

_LONGEST = 1500


@dataclass(slots=True)
class Report:
    seed: int
    database: str
    lake: str
    faults: Counter[str] = field(default_factory=Counter)
    operations: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    work: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reads: int = 0
    interrupted_reads: int = 0
    runs_finished: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    tracebacks: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    kept: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, kind: str) -> None:
        with self._lock:
            self.faults[kind] += 1

    def operation(self, kind: str, outcome: str, error: str = "") -> None:
        """Count an operation by its outcome: done, refused, transient, interrupted or crashed."""
        with self._lock:
            self.operations[kind][outcome] += 1
            if outcome == "refused":
                self.refusals[_shape(error)] += 1
            if outcome == "crashed":
                self.tracebacks.append(f"{kind}: {error[-_LONGEST:]}")

    def skip(self, kind: str, why: str) -> None:
        with self._lock:
            self.skipped[kind] = why

    def violation(self, text: str) -> None:
        with self._lock:
            self.violations.append(text)

    def worked(self, line: dict[str, Any]) -> None:
        """Add one line that a worker or a reader wrote about itself."""
        match line["act"]:
            case "read":
                self.reads += line["outcome"] == "done"
                self.interrupted_reads += line["outcome"] == "transient"
            case act:
                self.work[act][line["outcome"]] += 1
        if line["outcome"] == "violation":
            self.violation(line["error"])
        elif line["outcome"] == "crashed":
            self.tracebacks.append(f"{line['act']}: {line['error'][-_LONGEST:]}")

    def document(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "database": self.database,
            "lake": self.lake,
            "seconds": round(self.seconds),
            "faults": dict(sorted(self.faults.items())),
            "operations": {kind: dict(found) for kind, found in sorted(self.operations.items())},
            "work": {kind: dict(found) for kind, found in sorted(self.work.items())},
            "reads": self.reads,
            "interrupted_reads": self.interrupted_reads,
            "runs_finished": self.runs_finished,
            "refusals": dict(self.refusals.most_common(20)),
            "skipped": self.skipped,
            "tracebacks": self.tracebacks,
            "violations": self.violations,
            "kept": self.kept,
        }


def _shape(error: str) -> str:
    """The first line of a message without keys and runs, so that equal refusals are counted together."""
    line = next((text for text in reversed(error.strip().splitlines()) if text.strip()), "")
    words = ["..." if "/" in word or len(word) >= 26 else word for word in line.split()]
    return " ".join(words)[:160]

"""What is wrong with a slice, said so that a person can find the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.config.checks import Severity

_LONGEST_EXAMPLE = 500


@dataclass(frozen=True, slots=True)
class Complaint:
    """One check that the slice does not pass: how many rows, the first of them, and what it looks like."""

    check: str
    message: str
    count: int
    line: int | None = None
    example: str | None = None
    severity: Severity = "reject"

    @property
    def rejects(self) -> bool:
        return self.severity == "reject"

    def as_dict(self) -> dict[str, Any]:
        """As the state database keeps it; that a complaint rejects goes without saying."""
        body = asdict(self)
        if self.rejects:
            del body["severity"]
        return body

    def __str__(self) -> str:
        if self.line is None:
            return self.message
        where = f"line {self.line}" if self.count == 1 else f"{self.count:,} rows, first at line {self.line}"
        return f"{self.message} ({where})"


def shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]}... ({len(text):,} characters)"


def merged(complaints: Iterable[Complaint]) -> list[Complaint]:
    """Complaints of several blocks of one payload as if it had been read at once."""
    found: dict[tuple[str, str], Complaint] = {}
    for complaint in complaints:
        known = found.get((complaint.check, complaint.message))
        found[complaint.check, complaint.message] = (
            complaint if known is None else replace(known, count=known.count + complaint.count)
        )
    return list(found.values())


def rejections(complaints: Iterable[Complaint]) -> list[Complaint]:
    """The complaints that stand in the way of acceptance; the others are warnings."""
    return [complaint for complaint in complaints if complaint.rejects]


def summary(complaints: Sequence[Complaint]) -> str:
    """Complaints in one line, for the partition's error message."""
    return "; ".join(str(complaint) for complaint in complaints)

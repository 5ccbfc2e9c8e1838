"""Complaints: violations of a contract, with the place of the first row that breaks it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.config.checks import Severity

_LONGEST_EXAMPLE = 500


@dataclass(frozen=True, slots=True)
class Complaint:
    """One check that a partition does not pass, with the number of rows, the line of the first row and its text."""

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
        """Return the form that the state database stores, without the severity `reject`, which is the default."""
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
    """Merge the complaints about several blocks of one payload: equal ones become one with the sum of the counts."""
    found: dict[tuple[str, str], Complaint] = {}
    for complaint in complaints:
        known = found.get((complaint.check, complaint.message))
        found[complaint.check, complaint.message] = (
            complaint if known is None else replace(known, count=known.count + complaint.count)
        )
    return list(found.values())


def rejections(complaints: Iterable[Complaint]) -> list[Complaint]:
    """Return the complaints that prevent acceptance; the others are warnings."""
    return [complaint for complaint in complaints if complaint.rejects]


def summary(complaints: Sequence[Complaint]) -> str:
    """Return the complaints as one line, for the error message of the partition."""
    return "; ".join(str(complaint) for complaint in complaints)

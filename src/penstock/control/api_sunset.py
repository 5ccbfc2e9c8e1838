"""Ends of APIs: sources whose version of an API is refused soon, or is refused already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta

from penstock.config.settings import SourceSettings
from penstock.config.source_hooks import HooksOf

WARNED = timedelta(days=60)  # before the end


@dataclass(frozen=True, slots=True)
class ApiEnd:
    """A source uses a version of an API that ends on a day."""

    source: str
    service: str
    version: str
    day: date

    def describe(self, today: date) -> str:
        """One line with what to do."""
        left = (self.day - today).days
        when = f"ends on {self.day}, in {left} days" if left > 0 else f"ended on {self.day}"
        return f"{self.source}: {self.service} API {self.version} {when}: set `api_version` to a newer one"


def ending_apis(sources: Iterable[SourceSettings], hooks_of: HooksOf, today: date) -> list[ApiEnd]:
    """The sources whose API ends within 60 days, or has ended."""
    found = []
    for source in sources:
        hooks = hooks_of(source.kind)
        end = hooks.api_end(source.options) if hooks.api_end is not None else None
        if end is not None and today >= end[1] - WARNED:
            found.append(ApiEnd(source.name, hooks.title or source.name, *end))
    return found

"""Rules that the class of a source adds to the settings. The source registry reads them from the class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from penstock.config.assets import Query
from penstock.config.values import Keeps


@dataclass(frozen=True, slots=True)
class SourceHooks:
    """The hooks of one kind of source; the defaults are those of a class without hooks."""

    title: str = ""  # the service, as messages name it
    keeps: Keeps = field(default_factory=Keeps)
    # Returns the id as partition keys have it; raises ValueError with the rule that the id breaks.
    normalise_customer: Callable[[str], str] | None = None
    # Returns the default of `parallelism` for these options of the source; None: one request for each core.
    requests_in_flight: Callable[[Mapping[str, Any]], int | None] | None = None
    # Returns whether each day of a span is a request of its own, given the options of the source and the query.
    asks_by_day: Callable[[Mapping[str, Any], Query], bool] | None = None
    # Returns the version of the API that these options use, and the day from which the service refuses it; None if that
    # day is not known.
    api_end: Callable[[Mapping[str, Any]], tuple[str, date] | None] | None = None


HooksOf = Callable[[str], SourceHooks]  # by the kind of a source

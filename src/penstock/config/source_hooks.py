"""Rules that the class of a source adds to the settings. The source registry reads them from the class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.config.values import Keeps


@dataclass(frozen=True, slots=True)
class SourceHooks:
    """The hooks of one kind of source; the defaults are those of a class without hooks."""

    title: str = ""  # the service, as messages name it
    keeps: Keeps = field(default_factory=Keeps)
    # Returns the id as partition keys have it; raises ValueError with the rule that the id breaks.
    normalise_customer: Callable[[str], str] | None = None


HooksOf = Callable[[str], SourceHooks]  # by the kind of a source

"""How far back a source can be asked. What lies before its horizon is frozen: no run touches it any more."""

from __future__ import annotations

from datetime import date

from penstock.config.settings import SourceSettings
from penstock.config.values import Keeps

# What is known about kinds, without loading their client libraries.
_KEEPS = {"google_ads": Keeps(months=37)}


def keeps(settings: SourceSettings) -> Keeps:
    """What the workspace file says, or what is known about sources of this kind."""
    return settings.keeps or _KEEPS.get(settings.kind, Keeps())


def horizon(settings: SourceSettings, today: date) -> date | None:
    """The oldest day that the source can be asked for when it is `today` where the account lives; None: any day."""
    return keeps(settings).first_day(today)

"""The horizon of a source is the oldest day that it serves. Partitions before it are frozen: no run attempts them."""

from __future__ import annotations

from datetime import date

from penstock.config.settings import SourceSettings
from penstock.config.values import Keeps
from penstock.source.registry import hooks_of


def keeps(settings: SourceSettings) -> Keeps:
    """For how long the source keeps days: by the workspace file, or else by the class of its kind."""
    return settings.keeps or hooks_of(settings.kind).keeps


def horizon(settings: SourceSettings, today: date) -> date | None:
    """The oldest day that the source keeps, if it is `today` in the time zone of the account; None: any day."""
    return keeps(settings).first_day(today)

"""Quiet hours: the moment from which a notification may be sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from penstock.config.alerts import QuietHours


def after_quiet_hours(quiet: QuietHours | None, moment: datetime) -> datetime:
    """The moment itself, or the end of the quiet hours that contain it. They follow the local clock, so they are an
    hour longer or shorter in the night of a clock change."""
    if quiet is None:
        return moment
    zone = ZoneInfo(quiet.time_zone)
    local = moment.astimezone(zone)
    at, day = local.time(), local.date()
    if quiet.from_ < quiet.until:
        if not quiet.from_ <= at < quiet.until:
            return moment
    elif at >= quiet.from_:
        day += timedelta(days=1)
    elif at >= quiet.until:
        return moment
    end = datetime.combine(day, quiet.until, zone)
    if end.astimezone(UTC) <= moment:  # the local hour is repeated, and this is its second pass
        end = end.replace(fold=1)
    return max(moment, end.astimezone(UTC))

"""Maps the date field of a row to one of the requested days."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time

from penstock.errors import DataError, UsageError
from penstock.partition import day as parsed_day


class Days:
    """The days of one span. They may have gaps, whose rows a request from the first to the last day also returns."""

    def __init__(self, dates: Sequence[date], field: str) -> None:
        self.first, self.last = min(dates), max(dates)
        self._field = field
        self._known: dict[object, date | None] = {day: day for day in dates}

    def of(self, cell: object) -> date | None:
        """The requested day; None for a day in a gap. Raises DataError for a value that is no day of the span."""
        try:
            return self._known[cell]
        except (KeyError, TypeError):  # a new value, or one that is not hashable
            day = self._parsed(cell)
        if not self.first <= day <= self.last:
            raise DataError(
                f"{self._field} is {day}, outside of the requested days, {self.first} to {self.last}:"
                " let the source choose the rows by day"
            )
        found = self._known.get(day)
        self._known[cell] = found
        return found

    def _parsed(self, cell: object) -> date:
        if cell is None:
            raise DataError(f"{self._field} is missing: it is the day of the row")
        if isinstance(cell, datetime) and cell.time() == time():  # databases without a date type
            return cell.date()
        if isinstance(cell, date) and not isinstance(cell, datetime):
            return cell
        try:
            return parsed_day(cell if isinstance(cell, str) else repr(cell), self._field)
        except UsageError as error:
            raise DataError(str(error)) from error

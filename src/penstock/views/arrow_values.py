"""Conversion of Arrow values to Python and JSON. It never fails: values beyond Python's range and precision become
text."""

from __future__ import annotations

from base64 import b64encode
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_DAY_SECONDS = 86_400
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_PYTHON_DAYS = (-719_162, 2_932_896)  # 0001-01-01 and 9999-12-31, in days since 1970-01-01
_INFINITE_DAYS = 2**31 - 1  # DuckDB's representation of infinite dates and times
_INFINITE_TIME = 2**63 - 1


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column. Dates and times beyond Python's range are text."""
    if not beyond_python(column):
        try:
            values: list[Any] = column.to_pylist()
            return values
        except (OverflowError, ValueError):  # somewhere inside a list, a struct or a map
            pass
    return [_python_value(value) for value in column]


def beyond_python(column: pa.Array) -> bool:
    """Whether a column of dates or times has a value beyond Python's range: infinity, year 10000, 24:00."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind) or pa.types.is_duration(kind) or not len(column):
        return False
    number = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    found = pc.min_max(number).as_py()
    return found["min"] is not None and not (_is_in_range(kind, found["min"]) and _is_in_range(kind, found["max"]))


def json_value(value: Any) -> Any:
    """Convert a value that JSON has no type for. A decimal without a fraction becomes a number, because sums of whole
    numbers are decimals; other decimals become text, to stay exact; bytes Base64; an interval an ISO 8601 duration."""
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0 and abs(value) < 2**63:
        return int(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if type(value).__name__ == "MonthDayNano":
        seconds = Decimal(value.nanoseconds) / 1_000_000_000
        return f"P{value.months}M{value.days}DT{seconds.normalize():f}S"
    return str(value)


def _is_in_range(kind: pa.DataType, value: int) -> bool:
    import pyarrow as pa

    if pa.types.is_date32(kind):
        return _PYTHON_DAYS[0] <= value <= _PYTHON_DAYS[1]
    if pa.types.is_date64(kind):
        return _PYTHON_DAYS[0] <= value // (_DAY_SECONDS * 1000) <= _PYTHON_DAYS[1]
    if pa.types.is_time(kind):
        return 0 <= value < _DAY_SECONDS * _UNITS[kind.unit]
    days = value // (_DAY_SECONDS * _UNITS[kind.unit])
    return abs(value) < _INFINITE_TIME and _PYTHON_DAYS[0] <= days <= _PYTHON_DAYS[1]


def _python_value(scalar: pa.Scalar) -> Any:
    import pyarrow as pa

    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_map(kind):
        return [(_python_value(entry["key"]), _python_value(entry["value"])) for entry in scalar.values]
    if pa.types.is_struct(kind):
        return {name: _python_value(value) for name, value in scalar.items()}
    if pa.types.is_union(kind) or pa.types.is_dictionary(kind):
        return _python_value(scalar.value)
    if pa.types.is_nested(kind):
        return [_python_value(value) for value in scalar.values]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        fits = _is_in_range(kind, scalar.value) and _fits_microseconds(kind, scalar.value)
        return scalar.as_py() if fits else _moment(kind, scalar.value)
    if pa.types.is_duration(kind) and not _fits_microseconds(kind, scalar.value):
        return f"{scalar.value} ns"
    return scalar.as_py()


def _fits_microseconds(kind: pa.DataType, value: int) -> bool:
    """Whether Python, whose times have microseconds, can hold the value. pandas could, and is not used here."""
    return getattr(kind, "unit", None) != "ns" or value % 1000 == 0


def _moment(kind: pa.DataType, value: int) -> str:
    """Return a date or a time beyond Python's range as DuckDB writes it."""
    import pyarrow as pa

    if abs(value) == (_INFINITE_DAYS if pa.types.is_date32(kind) else _INFINITE_TIME):
        return "infinity" if value > 0 else "-infinity"
    if pa.types.is_date32(kind):
        return _day(value)
    if pa.types.is_date64(kind):
        return _day(value // (_DAY_SECONDS * 1000))
    days, rest = (0, value) if pa.types.is_time(kind) else divmod(value, _DAY_SECONDS * _UNITS[kind.unit])
    seconds, fraction = divmod(rest, _UNITS[kind.unit])
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    clock += f".{fraction:0{len(str(_UNITS[kind.unit])) - 1}}" if fraction else ""
    if pa.types.is_time(kind):
        return clock
    return f"{_day(days)} {clock}{'+00' if kind.tz else ''}"


def _day(days: int) -> str:
    """Return a day counted from 1970-01-01 in the proleptic Gregorian calendar (Howard Hinnant's civil_from_days)."""
    era, of_era = divmod(days + 719_468, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    day_of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (month <= 2)
    text = f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}"
    return text if year > 0 else f"{text} (BC)"

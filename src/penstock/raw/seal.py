"""The seal of a raw partition (`metadata.json`): origin, size and digest of its payload."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, Self

import orjson

from penstock.clock import iso
from penstock.errors import DataError, RawError, UsageError
from penstock.partition import AttemptKey, PartitionKey, RunId, customer, day, name, run_id
from penstock.raw.layout import is_payload_name

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBERS = ("record_count", "payload_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The facts of one sealed raw partition. The file is created once and never replaced."""

    payload: str  # name of the file in the folder of the seal
    source: str
    customer_id: str
    query_name: str
    logical_date: date
    run_id: RunId
    extracted_at: datetime
    schema_version: str
    record_count: int
    payload_sha256: str
    payload_bytes: int
    api_version: str
    query_hash: str
    time_zone: str  # of the account: logical_date is a day in it
    penstock_version: str

    def __post_init__(self) -> None:
        if self.extracted_at.tzinfo is None:
            raise DataError(f"extracted_at {self.extracted_at} has no time zone: give a moment in UTC")

    @property
    def attempt(self) -> AttemptKey:
        return AttemptKey(PartitionKey(self.source, self.customer_id, self.query_name, self.logical_date), self.run_id)

    def to_bytes(self) -> bytes:
        """A JSON document. Equal seals have equal bytes."""
        facts: dict[str, Any] = {field: getattr(self, field) for field in _FIELDS}
        facts["logical_date"] = self.logical_date.isoformat()
        facts["extracted_at"] = iso(self.extracted_at)
        return orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a seal. Ignores fields of later versions. Raises RawError with the reason if it is not valid."""
        facts = _facts(data)
        if not is_payload_name(facts["payload"]):
            raise RawError(f"payload {facts['payload']!r} is not the name of a payload file")
        if not _SHA256.fullmatch(facts["payload_sha256"]):
            raise RawError(f"payload_sha256 {facts['payload_sha256']!r} is not a SHA-256 in hexadecimal")
        try:
            facts["source"] = name(facts["source"], "source")
            facts["customer_id"] = customer(facts["customer_id"])
            facts["query_name"] = name(facts["query_name"], "query")
            facts["logical_date"] = day(facts["logical_date"], "logical_date")
            facts["run_id"] = run_id(facts["run_id"])
        except UsageError as error:
            raise RawError(str(error)) from error
        try:
            facts["extracted_at"] = datetime.fromisoformat(facts["extracted_at"])
            return cls(**facts)
        except (ValueError, DataError) as error:
            raise RawError(f"extracted_at {facts['extracted_at']!r} is not a moment in UTC") from error


_FIELDS = tuple(field.name for field in fields(Seal))


def _facts(data: bytes) -> dict[str, Any]:
    """The fields of a seal with their JSON types checked."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RawError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RawError(f"it is not a JSON object but {type(found).__name__}")
    if missing := [field for field in _FIELDS if field not in found]:
        raise RawError(f"it lacks {', '.join(missing)}")
    facts = {field: found[field] for field in _FIELDS}
    for field, value in facts.items():
        if field in _NUMBERS:
            if type(value) is not int or value < 0:
                raise RawError(f"{field} {value!r} is not a count")
        elif type(value) is not str:
            raise RawError(f"{field} {value!r} is not text")
    return facts

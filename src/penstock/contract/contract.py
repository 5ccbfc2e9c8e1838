"""The contract of a query as a value. Its body is data: an attempt is judged by the body it was issued under."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import orjson
import pydantic

from penstock.config.assets import Query
from penstock.config.checks import Check, Field, check_from_mapping, check_to_mapping
from penstock.contract.extra import EXTRA
from penstock.errors import PenstockError
from penstock.field_types import Kind, kind_of
from penstock.partition import AssetKind, asset_kind

Policy = Literal["reject", "ignore", "keep"]


@dataclass(frozen=True, slots=True)
class Contract:
    """Everything by which a run of one query is validated, loaded and verified."""

    source: str
    query_name: str
    schema_version: str
    fields: tuple[Field, ...]
    checks: tuple[Check, ...]
    unknown_fields: Policy
    missing_fields: Policy
    options: Mapping[str, Any]

    @classmethod
    def of(cls, query: Query) -> Self:
        return cls(
            query.source,
            query.name,
            query.schema_version,
            query.fields,
            query.checks,
            query.unknown_fields,
            query.missing_fields,
            query.options_to_store,
        )

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """The contract that a stored body describes, whichever release wrote it."""
        return cls(
            source=body["source"],
            query_name=body["query_name"],
            schema_version=body["schema_version"],
            fields=tuple(Field(**field) for field in body["fields"]),
            checks=tuple(check_from_mapping(check) for check in body["checks"]),
            unknown_fields=body["unknown_fields"],
            missing_fields=body["missing_fields"],
            options=body["options"],
        )

    def body(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "query_name": self.query_name,
            "schema_version": self.schema_version,
            "fields": [_field(field) for field in self.fields],
            "checks": [check_to_mapping(check) for check in self.checks],
            "unknown_fields": self.unknown_fields,
            "missing_fields": self.missing_fields,
            "options": dict(self.options),
        }

    @property
    def fingerprint(self) -> str:
        """The same contract has the same fingerprint on every machine."""
        return hashlib.sha256(orjson.dumps(self.body(), option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]

    def same_as(self, bodies: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """The fingerprints, of stored bodies by fingerprint, under which earlier releases kept this same contract. A
        fingerprint names a body as one release wrote it; two are compared by reading both bodies with today's code."""
        found = []
        for fingerprint, body in bodies.items():
            if (body["source"], body["query_name"]) != (self.source, self.query_name):
                continue
            try:
                then = type(self).from_body(body)
            except (PenstockError, pydantic.ValidationError, KeyError, TypeError):  # nothing that today's code can mean
                continue
            if then.fingerprint == self.fingerprint:
                found.append(fingerprint)
        return found

    @property
    def columns(self) -> tuple[Field, ...]:
        """The columns of its rows: the fields, and one for what is kept beside them."""
        if self.unknown_fields != "keep":
            return self.fields
        return (*self.fields, Field.model_construct(name=EXTRA, type="string", required=False, default=None))

    @property
    def kinds(self) -> dict[str, Kind]:
        return {field.name: kind_of(field.type) for field in self.fields}

    @property
    def defaults(self) -> dict[str, Any]:
        """What stands in for fields that a row does not have."""
        return {field.name: field.default for field in self.fields if field.default is not None}

    def type_of(self, field_name: str) -> str:
        return next(field.type for field in self.fields if field.name == field_name)

    @property
    def asset(self) -> str:
        return f"{self.source}.{self.query_name}"

    @property
    def kind(self) -> AssetKind:
        return asset_kind(self.source)

    @property
    def place(self) -> str:
        """Where the workspace file says it."""
        return f"{'models' if self.kind is AssetKind.DERIVED else 'queries'}.{self.query_name}"

    @property
    def table(self) -> str:
        """The warehouse table of this contract: two schema versions never share one."""
        return f"{self.asset}.{self.schema_version}"


def _field(field: Field) -> dict[str, Any]:
    """What came later is written only where it says something: the fingerprints of older contracts stay."""
    body = {"name": field.name, "type": field.type, "required": field.required}
    return body if field.default is None else {**body, "default": field.default}

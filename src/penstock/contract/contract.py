"""The contract of a query as a value. Its body is stored; an attempt is validated under the body it was issued with."""

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
    """The schema, checks and policies of a query, for validation, load and verification."""

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
        """A hash of the body, equal on every machine. It is the code version of attempts."""
        return hashlib.sha256(orjson.dumps(self.body(), option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]

    def same_as(self, bodies: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the fingerprints of those stored `bodies` that are equal to this contract. Earlier releases may have
        written the same contract differently, so each body is parsed by this release and compared."""
        found = []
        for fingerprint, body in bodies.items():
            if (body["source"], body["query_name"]) != (self.source, self.query_name):
                continue
            try:
                then = type(self).from_body(body)
            except (PenstockError, pydantic.ValidationError, KeyError, TypeError):  # this release cannot parse it
                continue
            if then.fingerprint == self.fingerprint:
                found.append(fingerprint)
        return found

    @property
    def columns(self) -> tuple[Field, ...]:
        """The columns of the table: the fields, and `_extra` if unknown fields are kept."""
        if self.unknown_fields != "keep":
            return self.fields
        return (*self.fields, Field.model_construct(name=EXTRA, type="string", required=False, default=None))

    @property
    def kinds(self) -> dict[str, Kind]:
        return {field.name: kind_of(field.type) for field in self.fields}

    @property
    def defaults(self) -> dict[str, Any]:
        """The default values of fields, for rows without the field."""
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
        """The path of the query or model in the workspace file, for messages."""
        return f"{'models' if self.kind is AssetKind.DERIVED else 'queries'}.{self.query_name}"

    @property
    def table(self) -> str:
        """The warehouse table of this contract. Each schema version has a table of its own."""
        return f"{self.asset}.{self.schema_version}"


def _field(field: Field) -> dict[str, Any]:
    """Newer keys are written only if they are set, so that the fingerprints of older contracts stay the same."""
    body = {"name": field.name, "type": field.type, "required": field.required}
    return body if field.default is None else {**body, "default": field.default}

"""Column types with the same values on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from penstock.clock import iso


class UtcTimestamp(TypeDecorator[datetime]):
    """A timestamp in UTC: timestamptz on PostgreSQL; on SQLite text of fixed width, so that text order is time
    order."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return iso(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None or isinstance(value, datetime):
            return None if value is None else value.astimezone(UTC)
        return _moment(value)


@lru_cache(maxsize=1024)  # thousands of rows of one batch have the same timestamp
def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


class Json(TypeDecorator[Any]):
    """A JSON document: jsonb on PostgreSQL, text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        from sqlalchemy.dialects.postgresql import JSONB  # loads every driver of PostgreSQL

        return dialect.type_descriptor(JSONB())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return json.dumps(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return json.loads(value) if isinstance(value, str) else value

"""Base of the models: a response has exactly the declared fields; a body with other fields is refused."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=10_000)]
Facts = dict[str, Any]  # an object whose fields depend on its kind


class Model(BaseModel):
    """A document."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)


class Partition(Model):
    """The identity of a partition."""

    key: str
    source: str
    customer_id: str
    query_name: str
    logical_date: date


class Problem(Model):
    """An error, by RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str


__all__ = ["Any", "Facts", "Model", "Partition", "Problem", "Text", "date", "datetime"]

"""Reads the options of a source from the workspace file. Error messages never show a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import pydantic

from penstock.config.values import KeyDoc
from penstock.errors import ConfigError


class Options(pydantic.BaseModel):
    """A map of options; unknown keys are refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    documentation: ClassVar[Mapping[str, KeyDoc]] = {}


T = TypeVar("T", bound=pydantic.BaseModel)


def read_options(model: type[T], written: Mapping[str, Any]) -> T:
    """The options as a value of the model. Raises ConfigError with every problem."""
    try:
        return model.model_validate(dict(written))
    except pydantic.ValidationError as error:
        known = ", ".join(model.model_fields)
        message = "; ".join(_message(problem, known) for problem in error.errors(include_url=False))
        # without the cause, because its text may hold what was written
        raise ConfigError(message) from None


@contextmanager
def naming_query(query: str) -> Iterator[None]:
    """Add the name of the query to a ConfigError about its options."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"queries.{query}.options: {error}") from error


def _message(problem: Any, known: str) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    hint = f" (known: {known})" if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1 else ""
    text = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {text[:1].lower()}{text[1:]}{hint}" if where else text

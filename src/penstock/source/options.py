"""Options of a source as the workspace file writes them. What is wrong with them is said without showing any value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import pydantic

from penstock.config.values import KeyDoc
from penstock.errors import ConfigError


class Options(pydantic.BaseModel):
    """What one map of options may say; unknown keys are refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    documentation: ClassVar[Mapping[str, KeyDoc]] = {}


T = TypeVar("T", bound=pydantic.BaseModel)


def read_options(model: type[T], written: Mapping[str, Any]) -> T:
    """The options as a value of the model, or a ConfigError with everything that is wrong with them."""
    try:
        return model.model_validate(dict(written))
    except pydantic.ValidationError as error:
        known = ", ".join(model.model_fields)
        said = "; ".join(_said(problem, known) for problem in error.errors(include_url=False))
        # without the cause, because its text may hold what was written
        raise ConfigError(said) from None


@contextmanager
def about(query: str) -> Iterator[None]:
    """What is wrong with the options of a query, said with its name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"queries.{query}.options: {error}") from error


def _said(problem: Any, known: str) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    hint = f" (known: {known})" if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1 else ""
    words = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {words[:1].lower()}{words[1:]}{hint}" if where else words

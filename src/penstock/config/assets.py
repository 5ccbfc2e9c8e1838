"""Declarations of queries and models: fields, checks, freshness, restatement and retry."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
)

from penstock import partition
from penstock.config.checks import Check, Field, check_to_mapping, refuse_unfit_check, refuse_unsafe_expression
from penstock.config.freshness import Completeness, Freshness
from penstock.config.values import LIST, Day, Declared, Duration, KeyDoc, Name, Names, distinct, not_empty


class Restate(Declared):
    """How many past days are extracted again, because the source still changes them."""

    days: Annotated[int, pydantic.Field(ge=1)]
    # ages in days at which a day is extracted again; by default daily at first, then less and less often
    ages: Annotated[tuple[Annotated[int, pydantic.Field(ge=1)], ...], LIST, AfterValidator(distinct)] | None = None

    documentation: ClassVar = {
        "days": KeyDoc(
            "For how many days after its end a day is fetched again, because the source still changes it.", "30"
        ),
        "ages": KeyDoc(
            "At which ages, in days, it is fetched again. By default daily at first, then less and less often.",
            "[1, 2, 3, 7, 30]",
        ),
    }

    @pydantic.model_validator(mode="after")
    def _ages_within_days(self) -> Self:
        if self.ages is not None and max(self.ages) > self.days:
            raise ValueError(f"ages go up to {max(self.ages)}, but days is {self.days}: after that the day is settled")
        return self


_BACKOFF = (timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))


class Retry(Declared):
    """When a failed partition is retried, and when it becomes terminal."""

    max_attempts: Annotated[int, pydantic.Field(ge=1)] = 5
    backoff: Annotated[tuple[Duration, ...], LIST, AfterValidator(not_empty)] = _BACKOFF
    jitter: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.2
    max_age: Duration = timedelta(days=30)
    # error classes that are retried automatically; quota and credential errors do not count against a partition
    errors: Annotated[tuple[Literal["transient", "config", "data", "internal"], ...], LIST] = ("transient", "internal")

    documentation: ClassVar = {
        "max_attempts": KeyDoc(
            "The largest number of failed attempts; after them only an operator retries the partition.", "3"
        ),
        "backoff": KeyDoc("The time before the second, third, ... attempt; the last one repeats.", "[5m, 30m, 2h]"),
        "jitter": KeyDoc("The largest random share by which each time becomes longer or shorter.", "0.2"),
        "max_age": KeyDoc("How long after it became due a partition is retried.", "30d"),
        "errors": KeyDoc(
            "The error classes that are retried. Errors of quota and credentials never count as failed attempts.",
            "[transient]",
        ),
    }


def _distinct_fields(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    distinct(tuple(field.name for field in fields))
    return fields


class Query(Declared):
    """One report of one source, extracted per customer and day, with its contract."""

    not_in_yaml = frozenset({"name", "stored_options"})

    name: Name
    source: str
    schema_version: Name = "v1"
    start_date: Day | None = None
    fields: Annotated[tuple[Field, ...], LIST, AfterValidator(_distinct_fields)]
    checks: Annotated[tuple[Annotated[Check, AfterValidator(refuse_unfit_check)], ...], LIST] = ()
    unknown_fields: Literal["reject", "ignore", "keep"] = "reject"
    missing_fields: Literal["reject", "ignore"] = "ignore"
    freshness: Freshness | None = None
    restate: Restate | None = None
    retry: Retry = Retry()
    options: dict[str, Any] = pydantic.Field(default_factory=dict, repr=False)
    # the options with ${NAME} unexpanded, for storage and display; None if they contain no variables
    stored_options: dict[str, Any] | None = pydantic.Field(default=None, repr=False, exclude=True)
    customers: Names | None = None

    documentation: ClassVar = {
        "source": KeyDoc("The name of the source.", "demo"),
        "schema_version": KeyDoc(
            "The version of the fields. Change it when fields change: each version is a table of its own.", "v2"
        ),
        "start_date": KeyDoc("The first day that is expected.", "2024-06-01"),
        "fields": KeyDoc("The columns.", "[{name: clicks, type: long}]"),
        "checks": KeyDoc(
            "Conditions on the rows of a partition; a partition that violates one is rejected.",
            "[{unique: [campaign_id]}]",
        ),
        "unknown_fields": KeyDoc(
            "Fields that only the rows have: reject the partition, drop them, or keep them as JSON in `_extra`.",
            "keep",
        ),
        "missing_fields": KeyDoc("Fields that a row lacks: reject the partition, or read them as null.", "reject"),
        "freshness": KeyDoc(
            "How long an accepted run is fresh, and by when a day must be complete.",
            '{max_lag: 36h, complete_by: "09:00"}',
        ),
        "restate": KeyDoc("Which past days are fetched again.", "{days: 3}"),
        "retry": KeyDoc("When a failed partition is tried again.", "{max_attempts: 3}"),
        "options": KeyDoc(
            "Options of the source's kind for this query, for example its SQL or its path.", "{sql: SELECT 1}"
        ),
        "customers": KeyDoc(
            "The ids of the customers that the query is for. Without it, all of them.", '["1000000001"]'
        ),
    }

    @property
    def options_to_store(self) -> dict[str, Any]:
        """The options without the values of variables, which may be secrets."""
        return self.options if self.stored_options is None else self.stored_options


def query_to_mapping(query: Query) -> dict[str, Any]:
    """Return the query as a workspace file declares it under its name, without default values."""
    written: dict[str, Any] = query.model_dump(mode="json", exclude_defaults=True, exclude={"name", "checks"})
    if query.stored_options is not None:
        written["options"] = query.stored_options
    if query.checks:
        written["checks"] = [check_to_mapping(check) for check in query.checks]
    return {key: written[key] for key in Query.keys_in_yaml() if key in written}


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _window(value: object) -> object:
    """Parse the number of input days of a model: `7 days`, `7d` or 7."""
    found = re.fullmatch(r"(\d+)(?: days?|d)", value) if isinstance(value, str) else None
    days = int(found[1]) if found else value
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 3_660:
        raise ValueError(f"{value!r} is not a number of days: write 7 days")
    return days


class Model(Declared):
    """A table derived from other tables, per date or per customer and date."""

    not_in_yaml = frozenset({"name"})

    name: Name
    sql: str | None = None  # a file of Spark SQL; without it, and without python, models/<name>.sql
    python: str | None = None  # a file that defines model(inputs, partitions)
    schema_version: Name = "v1"
    depends_on: Names
    # inside { } a comma ends the value, so a list is accepted as well
    per: Annotated[Literal["date", "customer,date"], BeforeValidator(_joined)] = "date"
    needs: Annotated[int, BeforeValidator(_window)] = 1  # input days of one partition, including the day itself
    require: Completeness = "all"  # share of each input that must be readable
    refresh: bool = True  # derived again when its inputs or its code change
    on_demotion: Literal["stale", "hide"] = "stale"  # whether rows stay readable after the demotion of an input run
    checks: Annotated[tuple[Annotated[Check, AfterValidator(refuse_unsafe_expression)], ...], LIST] = ()
    freshness: Freshness | None = None
    retry: Retry = Retry()

    documentation: ClassVar = {
        "sql": KeyDoc(
            "A file with one Spark SQL query. Without `sql` and `python`: `models/<name>.sql`.",
            "models/daily_spend.sql",
        ),
        "python": KeyDoc("A file with a function `model(inputs, partitions)`. Excludes `sql`.", "models/peak.py"),
        "schema_version": KeyDoc("The version of the columns. Change it when columns change.", "v2"),
        "depends_on": KeyDoc("The tables that the model reads.", "[demo.campaign_daily]"),
        "per": KeyDoc(
            "The partitions of the model: one for each day, or one for each customer and day.", "[customer, date]"
        ),
        "needs": KeyDoc(
            "The days of the inputs that are read for one day, including the day itself.", "7 days", "days"
        ),
        "require": KeyDoc(
            "How many input partitions must be readable: `all`, `any`, a number, or a share.", "95%", "rule"
        ),
        "refresh": KeyDoc(
            "Whether a day is derived again when its inputs or its code change. If not, it is only marked as stale.",
            "false",
        ),
        "on_demotion": KeyDoc(
            "Whether rows that were derived from a demoted run can still be read (`stale`) or not (`hide`).", "hide"
        ),
        "checks": KeyDoc(
            "Conditions on the rows of a partition; a partition that violates one is rejected.", "[{rows: {min: 1}}]"
        ),
        "freshness": KeyDoc(
            "How long an accepted run is fresh, and by when a day must be complete.",
            '{max_lag: 36h, complete_by: "09:00"}',
        ),
        "retry": KeyDoc("When a failed partition is tried again.", "{max_attempts: 3}"),
    }

    source: ClassVar[str] = partition.MODELS
    restate: ClassVar[None] = None  # models follow their inputs

    @pydantic.model_validator(mode="after")
    def _one_definition(self) -> Self:
        if self.sql is not None and self.python is not None:
            raise ValueError("sql and python exclude each other: a model has one definition")
        return self

    @property
    def definition(self) -> str:
        """The file with the code of the model."""
        return self.python or self.sql or f"models/{self.name}.sql"

    @property
    def per_customer(self) -> bool:
        return self.per == "customer,date"


Asset = Query | Model

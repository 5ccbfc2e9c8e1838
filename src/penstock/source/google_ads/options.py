"""Options of the kind google_ads: those of the source, and those of a query."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self

import pydantic
from pydantic import AfterValidator, BeforeValidator

from penstock.config.values import Declared, Duration, KeyDoc

_ENDPOINT = re.compile(r"[A-Za-z0-9.-]+:\d{1,5}")
_PATH = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


def _account(value: object) -> object:
    digits = str(value).replace("-", "") if isinstance(value, str | int) else ""
    if not re.fullmatch(r"\d{10}", digits):
        raise ValueError("must be the ten digits of a manager account, for example 123-456-7890")
    return digits


def _endpoint(text: str) -> str:
    if not _ENDPOINT.fullmatch(text):
        raise ValueError(f"{text!r} is not an address: write host:port")
    return text


class Options(Declared):
    """Options of `sources.<name>` for kind google_ads. Credentials come from the environment, never from a file."""

    login_customer_id: Annotated[str, BeforeValidator(_account)] | None = None
    api_version: str | None = None
    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    insecure: bool = False
    timeout: Duration = timedelta(minutes=30)

    documentation: ClassVar = {
        "login_customer_id": KeyDoc("The manager account that has access to the customers.", "123-456-7890"),
        "api_version": KeyDoc("The version of the API. By default the one that this release is tested with.", "v26"),
        "endpoint": KeyDoc("The address of a test server, as `host:port`.", '"localhost:8080"'),
        "insecure": KeyDoc("Whether the test server is called without TLS. Needs `endpoint`.", "true"),
        "timeout": KeyDoc("The largest duration of one request.", "10m"),
    }

    @pydantic.model_validator(mode="after")
    def _plain_text_is_for_test_servers(self) -> Self:
        if self.insecure and self.endpoint is None:
            raise ValueError("insecure is for a test server: give its endpoint, or leave insecure out")
        return self


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a Google Ads field: write for example metrics.clicks")
    return text


class Column(Declared):
    """The Google Ads field of a column. Micros stay whole numbers unless `as: units` is given."""

    path: Annotated[str, AfterValidator(_path)]
    unit: Annotated[Literal["units"] | None, pydantic.Field(validation_alias="as")] = None

    documentation: ClassVar = {
        "path": KeyDoc("The Google Ads field.", "metrics.clicks"),
        "as": KeyDoc("`units` turns micros into units of the currency.", "units"),
    }


def _column(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


class QueryOptions(Declared):
    """Options of `queries.<name>` for kind google_ads: a resource with conditions, or a whole query."""

    resource: str | None = None
    conditions: Annotated[tuple[str, ...], pydantic.Field(strict=False)] = ()
    gaql: str | None = None
    select: dict[str, Annotated[Column, BeforeValidator(_column)]]
    enums: Literal["names", "numbers"] = "names"

    documentation: ClassVar = {
        "resource": KeyDoc("The resource of the report. Excludes `gaql`.", "campaign"),
        "conditions": KeyDoc(
            "Conditions of the report, beside the days. Need `resource`.", "[campaign.status = ENABLED]"
        ),
        "gaql": KeyDoc(
            "A whole query in the Google Ads Query Language. Excludes `resource`.",
            "SELECT metrics.clicks FROM campaign",
        ),
        "select": KeyDoc(
            "The Google Ads field of each field of the query: its name, or a map.",
            "{clicks: metrics.clicks}",
            "map of names or maps",
        ),
        "enums": KeyDoc("Whether enums arrive as names or as numbers.", "numbers"),
    }

    @pydantic.model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.resource is None) == (self.gaql is None):
            raise ValueError("give either resource (with conditions, if need be) or gaql")
        if self.gaql is not None and self.conditions:
            raise ValueError("conditions belong beside resource; in gaql write them after WHERE")
        return self

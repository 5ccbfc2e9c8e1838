"""The settings of a workspace: `penstock.yaml` as frozen values.

Importing this module loads no Spark, no database driver and no Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from penstock import partition
from penstock.config.alerts import AlertSettings
from penstock.config.assets import Asset, Model, Query
from penstock.config.console import ConsoleSettings
from penstock.config.rates import RateLimit, RateLimits, counted, pace
from penstock.config.values import (
    Day,
    Declared,
    Duration,
    Kept,
    KeyDoc,
    Name,
    TimeZone,
    unknown_name,
)
from penstock.errors import UsageError

WORKSPACE_FILE = "penstock.yaml"

# Tables of models are named models.<name>, projections system.<name>: a source of that name would be ambiguous.
_RESERVED_SOURCES = ("models", "system")
_POSTGRES = "postgresql+psycopg://"
SQLITE = "sqlite:///"
_MASKED = "***"


def _mask(url: str) -> str:
    # up to the last @, because a password that is not percent-encoded may contain one
    masked = re.sub(r"(://[^:/@]*):.*@", rf"\1:{_MASKED}@", url)
    return re.sub(r"(?i)((?:password|sslpassword)=)[^&]*", rf"\1{_MASKED}", masked)


def _state_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "postgresql":
        url = _POSTGRES + rest
    if url.startswith(SQLITE):
        if url.removeprefix(SQLITE).partition("?")[0] in ("", ":memory:"):
            raise ValueError(
                "a database in memory is lost with the process: name a file, for example sqlite:///state.db"
            )
        return url
    if not url.startswith(_POSTGRES):
        raise ValueError(f"must start with {SQLITE} or {_POSTGRES}")
    try:
        _ = urlsplit(url).port  # reading the property validates the port
    except ValueError:
        hint = "check the port, and percent-encode special characters in the user and the password"
        raise ValueError(f"is not a database URL: {hint}") from None
    return url


class StateSettings(Declared):
    """The address of the state database. Its repr never shows the password."""

    url: Annotated[str, AfterValidator(_state_url)]
    schema_name: Annotated[Name | None, pydantic.Field(validation_alias="schema")] = None

    documentation: ClassVar = {
        "url": KeyDoc(
            "The URL of the state database: a SQLite file or PostgreSQL.", "postgresql+psycopg://user@host/db"
        ),
        "schema": KeyDoc(
            "The PostgreSQL schema of the state, so that several workspaces can share one database.", "penstock"
        ),
    }

    @pydantic.field_validator("schema_name")
    @classmethod
    def _only_where_schemas_exist(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and info.data.get("url", "").startswith(SQLITE):
            raise ValueError("a schema is for PostgreSQL only; a SQLite state has a file of its own")
        return name

    @property
    def masked_url(self) -> str:
        return _mask(self.url)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield "url", self.masked_url
        yield "schema_name", self.schema_name


def _spark_text(value: object) -> object:
    """Convert `8` and `true`, which YAML parses, back to text, because Spark's settings are text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _remote(address: str | None) -> str | None:
    """Check the address of a Connect server. The error does not show its parameters: one may be a token."""
    if address is None or address.startswith("local"):
        return address
    place, _, parameters = address.removeprefix("sc://").partition("/")
    host, _, port = place.rpartition(":") if ":" in place else (place, "", "0")
    if not address.startswith("sc://") or not host or not port.isdigit() or ";" in place:
        raise ValueError(
            "must be the address of a Spark Connect server: sc://host:15002, or sc://host:15002/;token=..."
        )
    for parameter in parameters.strip(";").split(";") if parameters else ():
        name, _, value = parameter.partition("=")
        if not name or not value or "=" in value:
            raise ValueError(f"the parameter {name or '?'} must be name=value, with = in a value written as %3D")
    return address


class SparkSettings(Declared):
    """The Spark session of data processing."""

    master: str = "local[*]"
    remote: Annotated[str | None, AfterValidator(_remote)] = pydantic.Field(default=None, repr=False)
    python: Annotated[str | None, pydantic.Field(min_length=1)] = None
    environment: Annotated[str | None, pydantic.Field(min_length=1)] = None
    executor_timeout: Duration = timedelta(minutes=2)
    driver_partitions: Annotated[int, pydantic.Field(ge=0, le=1000)] = 32  # of a run that needs no Spark
    config: dict[str, Annotated[str, BeforeValidator(_spark_text)]] = pydantic.Field(default_factory=dict, repr=False)

    documentation: ClassVar = {
        "master": KeyDoc("The Spark master that a run starts or connects to. Excludes `remote`.", '"local[4]"'),
        "remote": KeyDoc("The address of a Spark Connect server. Excludes `master`.", "sc://host:15002"),
        "python": KeyDoc(
            "The Python interpreter of the executors: a path on their hosts. On a local master it is the driver's own.",
            "/opt/penstock/bin/python",
            "path",
        ),
        "environment": KeyDoc(
            "A packed virtual environment that is shipped to the executors (`venv-pack`). Excludes `python`.",
            "environment.tar.gz",
            "path or URL of an archive",
        ),
        "executor_timeout": KeyDoc(
            "How long a run waits for an executor of a cluster, at its start and after all of them were lost.", "2m"
        ),
        "driver_partitions": KeyDoc(
            "On a local master, `penstock run` fetches and validates up to this number of partitions in its own"
            " process, because the start of Spark would take longer. 0: always on Spark.",
            "0",
        ),
        "config": KeyDoc(
            "Settings of the Spark session, as Spark names them.", "{spark.driver.memory: 4g}", "map of Spark settings"
        ),
    }

    @property
    def is_local(self) -> bool:
        """Whether driver and workers are one process tree on this host: `local`, `local[...]`."""
        return self.remote is None and is_local_master(self.master)

    @property
    def where(self) -> str:
        """The master or the Connect server, without a token in its address."""
        return self.master if self.remote is None else self.remote.partition(";")[0].rstrip("/")

    @pydantic.model_validator(mode="after")
    def _one_of_two(self) -> SparkSettings:
        if self.remote is not None and "master" in self.model_fields_set:
            raise ValueError("master and remote exclude each other: remote names a Spark Connect server")
        if self.python is not None and self.environment is not None:
            raise ValueError("python and environment exclude each other: the environment has its own interpreter")
        if self.is_local and (self.python or self.environment):
            raise ValueError(
                "python and environment are for a cluster: the workers of a local master run the driver's interpreter"
            )
        return self


def is_local_master(master: str) -> bool:
    """Whether the workers of a master are children of the driver. `local-cluster[...]` starts executors."""
    return master == "local" or master.startswith("local[")


def _customer_id(text: str) -> str:
    try:
        return partition.customer(text)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _quoted(value: object) -> object:
    if isinstance(value, int | float):
        raise ValueError('must be text: put the id in quotes, for example id: "1000000001"')
    return value


class Customer(Declared):
    """An account whose partitions are extracted, and the days on which it is active."""

    id: Annotated[str, AfterValidator(_customer_id), BeforeValidator(_quoted)]
    name: str = ""
    time_zone: TimeZone = "UTC"
    active_from: Day | None = None
    active_to: Day | None = None

    documentation: ClassVar = {
        "id": KeyDoc("The id of the account, in quotes. Part of the key of every partition.", '"1000000001"'),
        "name": KeyDoc("A name for people.", "Example"),
        "time_zone": KeyDoc(
            "The time zone of the account's days: a day is due when it is over there.", "Europe/Berlin", "time zone"
        ),
        "active_from": KeyDoc("The first day that is expected of the customer.", "2024-01-01"),
        "active_to": KeyDoc("The last day that is expected of the customer.", "2024-12-31"),
    }

    @pydantic.field_validator("active_to")
    @classmethod
    def _after_the_start(cls, last: date | None, info: ValidationInfo) -> date | None:
        first = info.data.get("active_from")
        if first and last and last < first:
            raise ValueError(f"'{last}' is before active_from '{first}'")
        return last


def _source_name(text: str) -> str:
    if text in _RESERVED_SOURCES:
        raise ValueError(f"{text!r} cannot name a source: its tables would be ambiguous with {text}.name")
    return text


class SourceSettings(Declared):
    """A source by name. Its options are validated by the class of its kind."""

    not_in_yaml = frozenset({"name", "options"})

    name: Annotated[Name, AfterValidator(_source_name)]
    kind: Annotated[str, pydantic.Field(min_length=1)]
    parallelism: Annotated[int, pydantic.Field(ge=1, le=1000)] | None = None  # requests at a time, over all workers
    rate: RateLimits = ()  # all of them apply, over all workers and processes
    keeps: Kept | None = None  # how long it keeps a day; older days are frozen (default: by its kind)
    options: dict[str, Any] = pydantic.Field(default_factory=dict, repr=False)

    documentation: ClassVar = {
        "kind": KeyDoc(
            "`demo`, `files`, `google_ads`, `http`, `sql`, or a kind of your own. Other keys are its options.",
            "demo",
        ),
        "parallelism": KeyDoc(
            "The largest number of simultaneous requests, over all workers. Default: 16 for `google_ads`, `http` and"
            " `files` on S3, 4 for `sql`, otherwise the cores. A quota error halves it for the rest of a run.",
            "8",
        ),
        "rate": KeyDoc(
            "The largest number of requests in a time, over all workers and processes; of a list, all limits apply.",
            "[50/s, 15000/d]",
            "rate, or list of rates",
        ),
        "keeps": KeyDoc(
            "How long the source keeps a day. Older days are frozen: no run fetches them. Default: by kind.",
            "37 months",
            "months, days or `forever`",
        ),
    }

    @property
    def pace(self) -> float | None:
        """Requests per second that keep the limits by second and minute; None without any."""
        return pace(self.rate)

    @property
    def quotas(self) -> tuple[RateLimit, ...]:
        """The limits by hour and day, which the state database counts."""
        return counted(self.rate)


def _lake(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    if scheme != "s3":
        raise ValueError("must be a folder or s3://bucket/prefix")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]+(/.*)?", rest):
        raise ValueError("names no bucket: write s3://bucket/prefix")
    return text.rstrip("/")


class RawSettings(Declared):
    """How payloads of sources are stored."""

    compression: Literal["auto", "zstd", "none"] = "auto"

    documentation: ClassVar = {
        "compression": KeyDoc(
            "How new payloads of sources are stored: `zstd`, `none` (plain lines), or `auto`: `zstd` on object storage"
            " and plain lines on a local disk. Both are always readable.",
            "zstd",
        ),
    }


class ControlSettings(Declared):
    """Limits of runs and rounds, and the shares of the control loop."""

    largest_run: Annotated[int, pydantic.Field(ge=1, le=10_000_000)] = 50_000  # maximum number of partitions of one run
    round: Annotated[int, pydantic.Field(ge=2)] = 10_000  # maximum number of partitions of one round
    backfill_share: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.3  # of a round, if both kinds are due
    # of a counted quota: the share that backfills and history leave to fresh data
    quota_reserve: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.2
    fresh_days: Annotated[int, pydantic.Field(ge=1)] = 7  # younger missing days count as fresh, older ones as history
    every: Duration = timedelta(seconds=30)  # between the starts of two rounds

    documentation: ClassVar = {
        "largest_run": KeyDoc(
            "The largest number of partitions that one run fetches; larger plans are split into several runs.", "20000"
        ),
        "round": KeyDoc("The largest number of partitions that one round of the control loop issues.", "5000"),
        "backfill_share": KeyDoc(
            "The share of a round for backfills and history, when fresh work is due as well.", "0.5"
        ),
        "quota_reserve": KeyDoc(
            "The share of an hourly or daily `rate` that is left to fresh data: backfills and history do not use it.",
            "0.3",
        ),
        "fresh_days": KeyDoc("Missing days up to this age are fresh work; older ones are history.", "3"),
        "every": KeyDoc("The time between the starts of two rounds of `penstock control serve`.", "1m"),
    }


class LedgerSettings(Declared):
    """How long the tasks and edges of finished runs are kept; partition status is kept forever."""

    keep_runs: Duration = timedelta(days=90)

    documentation: ClassVar = {
        "keep_runs": KeyDoc(
            "How long the tables of tasks and edges keep a finished run; partition status is kept forever.",
            "30d",
        ),
    }


class LineageSettings(Declared):
    """Where OpenLineage events of runs are sent: appended to a file, or posted to a service."""

    file: Annotated[str, pydantic.Field(min_length=1)] | None = None
    url: Annotated[str, pydantic.Field(pattern="https?://.+")] | None = None
    endpoint: str = "api/v1/lineage"
    api_key: str | None = pydantic.Field(default=None, repr=False)
    timeout: Duration = timedelta(seconds=5)

    documentation: ClassVar = {
        "file": KeyDoc("A file that gets one line for each OpenLineage event. Excludes `url`.", "lineage.jsonl"),
        "url": KeyDoc("The address of an OpenLineage service. Excludes `file`.", "https://marquez.example.com"),
        "endpoint": KeyDoc("The path of the service that takes events.", "api/v1/lineage"),
        "api_key": KeyDoc("The key of the service.", "${OPENLINEAGE_API_KEY}"),
        "timeout": KeyDoc("How long one request to the service may take.", "10s"),
    }

    @pydantic.model_validator(mode="after")
    def _one_place(self) -> LineageSettings:
        if (self.file is None) == (self.url is None):
            raise ValueError("needs either file or url: where the events go")
        return self

    @property
    def where(self) -> str:
        return self.file or _mask(self.url or "")


class Settings(Declared):
    """All settings of a workspace, validated as a whole."""

    not_in_yaml = frozenset({"root", "customer_files"})
    also_in_yaml = ("schema", "include")

    root: Path
    tenant: Name
    workspace: Name
    state: StateSettings
    lake: Annotated[str, pydantic.Field(min_length=1), AfterValidator(_lake)]
    spark: SparkSettings = SparkSettings()
    raw: RawSettings = RawSettings()
    control: ControlSettings = ControlSettings()
    ledger: LedgerSettings = LedgerSettings()
    lineage: LineageSettings | None = None
    console: ConsoleSettings = ConsoleSettings()
    alerts: AlertSettings | None = None
    customers: Annotated[tuple[Customer, ...], pydantic.Field(strict=False)] = ()
    customer_files: tuple[Path, ...] = pydantic.Field(default=(), repr=False)
    sources: dict[str, SourceSettings] = pydantic.Field(default_factory=dict)
    queries: dict[str, Query] = pydantic.Field(default_factory=dict)
    models: dict[str, Model] = pydantic.Field(default_factory=dict)

    documentation: ClassVar = {
        "tenant": KeyDoc("The owner of the workspace: `tenant_id` in events and projections.", "acme"),
        "workspace": KeyDoc("The name of the workspace: `workspace_id` in events and projections.", "ads"),
        "state": KeyDoc(
            "The state database: its URL, or a map. A relative SQLite path starts at the workspace file.",
            "sqlite:///state.db",
            "URL or map",
        ),
        "lake": KeyDoc(
            "A folder or `s3://bucket/prefix`, for `raw/`, `warehouse/` and `projections/`.",
            "./lake",
        ),
        "spark": KeyDoc("The Spark session of runs.", '{master: "local[4]"}'),
        "raw": KeyDoc("How payloads are stored.", "{compression: zstd}"),
        "control": KeyDoc("The size of runs, and the schedule of the control loop.", "{every: 1m}"),
        "ledger": KeyDoc("How long finished runs are kept as tables.", "{keep_runs: 30d}"),
        "lineage": KeyDoc("Where OpenLineage events of runs go. Without it, none are sent.", "{file: lineage.jsonl}"),
        "console": KeyDoc("The web console: its address and its login.", "{url: https://penstock.example.com}"),
        "alerts": KeyDoc(
            "Alerts: rules, and the channels that are notified. Without it, none are evaluated.",
            "{channels: {ops: {webhook: '${HOOK_URL}'}}, rules: [{rule: run_broken}]}",
        ),
        "customers": KeyDoc(
            "The accounts whose partitions are fetched: a list, or the path of a .csv file with these keys as columns.",
            "customers.csv",
            "list of maps, or a .csv file",
        ),
        "sources": KeyDoc(
            "The sources by name. The name is part of the key of every partition; `models` and `system` are reserved.",
            "{demo: {kind: demo}}",
        ),
        "queries": KeyDoc(
            "The queries by name. A query is one table: `source.name` in SQL.",
            "{daily: {source: demo, fields: [{name: clicks, type: long}]}}",
        ),
        "models": KeyDoc(
            "The models by name. A model is a table derived from other tables: `models.name` in SQL.",
            "{daily_spend: {depends_on: [demo.daily]}}",
        ),
        "schema": KeyDoc("The same as `state.schema`.", "penstock", "name"),
        "include": KeyDoc(
            "Further files with `sources`, `queries`, `models` and `customers`, relative to this one.",
            "[queries.yaml]",
            "list of files",
        ),
    }

    @cached_property
    def _customers_by_id(self) -> dict[str, Customer]:
        return {customer.id: customer for customer in self.customers}

    def customer(self, customer_id: str) -> Customer:
        found = self._customers_by_id.get(customer_id)
        if found is None:
            raise UsageError(unknown_name("customer", customer_id, self._customers_by_id))
        return found

    def query(self, name: str) -> Query:
        found = self.queries.get(name)
        if found is None:
            raise UsageError(unknown_name("query", name, self.queries))
        return found

    @cached_property
    def assets(self) -> dict[str, Asset]:
        """Queries and models by name, queries first."""
        return {**self.queries, **self.models}

    def asset(self, name: str) -> Asset:
        found = self.assets.get(name)
        if found is None:
            raise UsageError(unknown_name("query", name, self.assets))
        return found

    def queries_of(self, source: str) -> tuple[Query, ...]:
        if source not in self.sources:
            raise UsageError(unknown_name("source", source, self.sources))
        return tuple(query for query in self.queries.values() if query.source == source)

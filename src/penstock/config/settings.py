"""The settings of a workspace: `penstock.yaml` as frozen values, or one error that lists every problem.

Importing this module loads no Spark, no database driver and no Arrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

import pydantic
from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from penstock import partition
from penstock.config.assets import Asset, Model, Query
from penstock.config.checks import (
    References,
)
from penstock.config.file import MERGED_MAPS, Document, Trail, read_workspace_file
from penstock.config.source_hooks import HooksOf, SourceHooks
from penstock.config.values import Day, Declared, Duration, Kept, KeyDoc, Name, Rate, describe_problem, did_you_mean
from penstock.errors import ConfigError, UsageError

WORKSPACE_FILE = "penstock.yaml"

# Tables of models are named models.<name>, projections system.<name>: a source of that name would be ambiguous.
_RESERVED_SOURCES = ("models", "system")
_POSTGRES = "postgresql+psycopg://"
_SQLITE = "sqlite:///"
_MASKED = "***"


def _mask(url: str) -> str:
    # up to the last @, because a password that is not percent-encoded may contain one
    masked = re.sub(r"(://[^:/@]*):.*@", rf"\1:{_MASKED}@", url)
    return re.sub(r"(?i)((?:password|sslpassword)=)[^&]*", rf"\1{_MASKED}", masked)


def _state_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "postgresql":
        url = _POSTGRES + rest
    if url.startswith(_SQLITE):
        if url.removeprefix(_SQLITE).partition("?")[0] in ("", ":memory:"):
            raise ValueError(
                "a database in memory is lost with the process: name a file, for example sqlite:///state.db"
            )
        return url
    if not url.startswith(_POSTGRES):
        raise ValueError(f"must start with {_SQLITE} or {_POSTGRES}")
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
        if name and info.data.get("url", "").startswith(_SQLITE):
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


class SparkSettings(Declared):
    """The Spark session of data processing."""

    master: str = "local[*]"
    remote: str | None = None
    config: dict[str, Annotated[str, BeforeValidator(_spark_text)]] = pydantic.Field(default_factory=dict, repr=False)

    documentation: ClassVar = {
        "master": KeyDoc("The Spark master that a run starts or connects to. Excludes `remote`.", '"local[4]"'),
        "remote": KeyDoc("The address of a Spark Connect server. Excludes `master`.", "sc://host:15002"),
        "config": KeyDoc(
            "Settings of the Spark session, as Spark names them.", "{spark.driver.memory: 4g}", "map of Spark settings"
        ),
    }

    @pydantic.model_validator(mode="after")
    def _one_of_two(self) -> SparkSettings:
        if self.remote is not None and "master" in self.model_fields_set:
            raise ValueError("master and remote exclude each other: remote names a Spark Connect server")
        return self


def _customer_id(text: str) -> str:
    try:
        return partition.customer(text)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _quoted(value: object) -> object:
    if isinstance(value, int | float):
        raise ValueError('must be text: put the id in quotes, for example id: "1000000001"')
    return value


def _time_zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):  # unknown, an invalid name, a folder of zones
        hint = did_you_mean(text, available_timezones()) or ": write a name such as Europe/Berlin"
        raise ValueError(f"{text!r} is not a known time zone{hint}") from None
    return text


class Customer(Declared):
    """An account whose partitions are extracted, and the days on which it is active."""

    id: Annotated[str, AfterValidator(_customer_id), BeforeValidator(_quoted)]
    name: str = ""
    time_zone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
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
    rate: Rate | None = None  # requests per second, over all workers
    keeps: Kept | None = None  # how long it keeps a day; older days are frozen (default: by its kind)
    options: dict[str, Any] = pydantic.Field(default_factory=dict, repr=False)

    documentation: ClassVar = {
        "kind": KeyDoc(
            "`demo`, `files`, `google_ads`, `http`, `sql`, or a kind of your own. Other keys are its options.",
            "demo",
        ),
        "parallelism": KeyDoc("The largest number of simultaneous requests, over all workers.", "8"),
        "rate": KeyDoc("The largest number of requests in a time, over all workers.", "600/m", "rate"),
        "keeps": KeyDoc(
            "How long the source keeps a day. Older days are frozen: no run fetches them. Default: by kind.",
            "37 months",
            "months, days or `forever`",
        ),
    }


def _lake(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    if scheme != "s3":
        raise ValueError("must be a folder or s3://bucket/prefix")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]+(/.*)?", rest):
        raise ValueError("names no bucket: write s3://bucket/prefix")
    return text.rstrip("/")


class ControlSettings(Declared):
    """Limits of runs and rounds, and the shares of the control loop."""

    largest_run: Annotated[int, pydantic.Field(ge=1, le=10_000_000)] = 50_000  # maximum number of partitions of one run
    round: Annotated[int, pydantic.Field(ge=2)] = 10_000  # maximum number of partitions of one round
    backfill_share: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.3  # of a round, if both kinds are due
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
    control: ControlSettings = ControlSettings()
    ledger: LedgerSettings = LedgerSettings()
    lineage: LineageSettings | None = None
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
        "control": KeyDoc("The size of runs, and the schedule of the control loop.", "{every: 1m}"),
        "ledger": KeyDoc("How long finished runs are kept as tables.", "{keep_runs: 30d}"),
        "lineage": KeyDoc("Where OpenLineage events of runs go. Without it, none are sent.", "{file: lineage.jsonl}"),
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
            raise UsageError(_unknown("customer", customer_id, self._customers_by_id))
        return found

    def query(self, name: str) -> Query:
        found = self.queries.get(name)
        if found is None:
            raise UsageError(_unknown("query", name, self.queries))
        return found

    @cached_property
    def assets(self) -> dict[str, Asset]:
        """Queries and models by name, queries first."""
        return {**self.queries, **self.models}

    def asset(self, name: str) -> Asset:
        found = self.assets.get(name)
        if found is None:
            raise UsageError(_unknown("query", name, self.assets))
        return found

    def queries_of(self, source: str) -> tuple[Query, ...]:
        if source not in self.sources:
            raise UsageError(_unknown("source", source, self.sources))
        return tuple(query for query in self.queries.values() if query.source == source)


def _unknown(what: str, found: str, known: Iterable[str]) -> str:
    names = list(known)
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") if names else "none"
    return f"{found!r} is not a known {what} (known: {listed}){did_you_mean(found, names)}"


def find_workspace(start: Path) -> Path:
    """Return the nearest folder, from `start` upwards, that contains a workspace file; ConfigError if there is none."""
    folder = start.absolute()
    for candidate in (folder, *folder.parents):
        if (candidate / WORKSPACE_FILE).is_file():
            return candidate
    raise ConfigError(
        f"there is no {WORKSPACE_FILE} in {folder} or any folder above it: run `penstock init` to create one"
    )


def load_settings(path: Path, environ: Mapping[str, str], hooks_of: HooksOf) -> Settings:
    """Load a workspace file, or that of a folder. Raises ConfigError with one line per problem. `hooks_of` returns the
    rules of a kind of source."""
    document = read_workspace_file(path / WORKSPACE_FILE if path.is_dir() else path, environ)
    if document.incomplete:
        document.raise_if_refused()
    _normalise_customers(document, hooks_of)
    settings = _validated(document)
    if settings is not None:
        _refuse_broken_references(document, settings.queries)
    # These inspect the document instead of the models, so that one bad value does not hide the next problem.
    _refuse_repeated_customers(document)
    _refuse_unknown_names(document)
    _refuse_customers_of_sources(document, hooks_of)
    _refuse_broken_models(document)
    document.raise_if_refused()
    assert settings is not None  # otherwise the line above has raised
    return settings


def load_queries(path: Path, environ: Mapping[str, str], hooks_of: HooksOf) -> dict[str, Query]:
    """Load the queries of a workspace file, of a file that it could include, or of a file with a single query."""
    document = read_workspace_file(path, environ)
    if document.incomplete:
        document.raise_if_refused()
    written = document.values
    if "tenant" in written or "state" in written:
        return load_settings(path, environ, hooks_of).queries
    alone = "queries" not in written
    found = {}
    own_name = str(written.get("name") or name_after(path))
    for name, body in [(own_name, written)] if alone else _maps(document, "queries"):
        where: Trail = () if alone else ("queries", name)
        try:
            context = {"field_names": {name: list(_strings(body.get("fields"), "name"))}}
            stored = _stored_options(document, where, body)
            found[name] = Query.model_validate({"source": "local", **body, **stored, "name": name}, context=context)
        except pydantic.ValidationError as error:
            for problem in error.errors(include_url=False):
                document.refuse(_as_written(document, (*where, *problem["loc"])), describe_problem(problem))
    document.raise_if_refused()
    return found


def name_after(file: Path) -> str:
    """Return the name of a query that a file describes without a name."""
    return re.sub(r"[^a-z0-9_]", "_", file.stem.lower())


def _validated(document: Document) -> Settings | None:
    names = {query: list(_strings(body.get("fields"), "name")) for query, body in _maps(document, "queries")}
    try:
        return Settings.model_validate(_shaped(document), context={"field_names": names})
    except pydantic.ValidationError as error:
        for problem in error.errors(include_url=False):
            document.refuse(_as_written(document, problem["loc"]), describe_problem(problem))
    return None


def _as_written(document: Document, trail: Trail) -> Trail:
    """Map a place in the models to the place in the file: a schema beside the state, a name beside the check."""
    if trail == ("state", "schema") and trail not in document.places:
        return ("schema",)
    if "checks" in trail and trail[-1] in ("name", "severity"):
        return (*trail[:-2], trail[-1])
    return trail


def _shaped(document: Document) -> dict[str, Any]:
    """Return the document in the shape of the models: with names, long forms and absolute paths."""
    written, root = document.values, document.file.parent
    shaped = {key: value for key, value in written.items() if key != "schema" and (key, value) != ("spark", None)}
    for key in sorted(Settings.not_in_yaml & set(written)):
        document.refuse((key,), f"unknown key {key!r} (known: {', '.join(Settings.keys_in_yaml())})")
    shaped |= {"root": root, "customer_files": tuple(document.customer_files)}
    if "state" in written:
        shaped["state"] = _shaped_state(document)
    lake = written.get("lake")
    if isinstance(lake, str) and lake and "://" not in lake:
        shaped["lake"] = os.path.abspath(root / lake)
    lineage = written.get("lineage")
    if isinstance(lineage, Mapping) and isinstance(lineage.get("file"), str):
        shaped["lineage"] = {**lineage, "file": os.path.abspath(root / lineage["file"])}
    shaped |= {section: dict(written[section]) for section in MERGED_MAPS if section in written}
    for name, body in _maps(document, "sources"):
        common = SourceSettings.keys_in_yaml()
        options = {key: value for key, value in body.items() if key not in common}
        ours = {key: value for key, value in body.items() if key in common}
        options |= _from_the_root(ours.get("kind"), options, root)
        shaped["sources"][name] = {"name": name, "options": options, **ours}
    for section, model in (("queries", Query), ("models", Model)):
        for name, body in _maps(document, section):
            known = ", ".join(model.keys_in_yaml())
            if "name" in body:
                document.refuse((section, name, "name"), f"unknown key 'name' (known: {known}); the name is {name!r}")
            shaped[section][name] = {**body, "name": name}
            if section == "queries":
                shaped[section][name] |= _stored_options(document, (section, name), body)
    return shaped


def _stored_options(document: Document, trail: Trail, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with unexpanded variables as `stored_options`, if the options contain variables."""
    if "stored_options" in body:
        known = ", ".join(Query.keys_in_yaml())
        document.refuse((*trail, "stored_options"), f"unknown key 'stored_options' (known: {known})")
    written = document.unexpanded((*trail, "options")) if isinstance(body.get("options"), dict) else None
    return {} if written is None else {"stored_options": written}


def _from_the_root(kind: object, options: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return options that name a local path as absolute paths: a worker has another working directory."""
    url, folder = options.get("url"), options.get("folder", ".")
    if kind == "sql" and isinstance(url, str):
        return {"url": _absolute_sqlite(url, root)}
    if kind == "files" and isinstance(folder, str) and "://" not in folder:
        return {"folder": os.path.abspath(root / folder)}
    return {}


def _absolute_sqlite(url: str, root: Path) -> str:
    file, mark, options = url.removeprefix(_SQLITE).partition("?")
    if not url.startswith(_SQLITE) or file in ("", ":memory:"):
        return url
    return f"{_SQLITE}{os.path.abspath(root / file)}{mark}{options}"


def _shaped_state(document: Document) -> dict[str, Any]:
    state = document.values["state"]
    shaped = dict(state) if isinstance(state, Mapping) else {"url": state}
    if "schema" in document.values:
        if "schema" in shaped:
            document.refuse(("schema",), f"is already given at {document.place(('state', 'schema'))}")
        shaped["schema"] = document.values["schema"]
    url = shaped.get("url")
    if isinstance(url, str):
        shaped["url"] = _absolute_sqlite(url, document.file.parent)
    return shaped


def _maps(document: Document, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, body in document.values.get(section, {}).items():
        if isinstance(body, dict):
            yield name, body


def _strings(items: object, key: str | None = None) -> Iterator[str]:
    """Yield the strings in a list, or under a key of the maps in it; the models refuse anything else."""
    for _, text in _numbered_strings(items, key):
        yield text


def _numbered_strings(items: object, key: str | None = None) -> Iterator[tuple[int, str]]:
    for index, item in enumerate(items if isinstance(items, list) else ()):
        text = item if key is None else item.get(key) if isinstance(item, dict) else None
        if isinstance(text, str):
            yield index, text


def _refuse_repeated_customers(document: Document) -> None:
    first: dict[str, int] = {}
    for index, customer_id in _numbered_strings(document.values.get("customers"), "id"):
        if first.setdefault(customer_id, index) != index:
            earlier = document.place(("customers", first[customer_id]))
            document.refuse(("customers", index, "id"), f"customer {customer_id!r} is already defined at {earlier}")


def _refuse_unknown_names(document: Document) -> None:
    sources = document.values.get("sources", {})
    customers = {text: index for index, text in _numbered_strings(document.values.get("customers"), "id")}
    for name, query in _maps(document, "queries"):
        source = query.get("source")
        if isinstance(source, str) and source not in sources:
            document.refuse(("queries", name, "source"), _unknown("source", source, sources))
        for index, customer_id in _numbered_strings(query.get("customers")):
            if customer_id not in customers:
                known = [document.hide(text, ("customers", at, "id")) for text, at in customers.items()]
                document.refuse(("queries", name, "customers", index), _unknown("customer", customer_id, known))


class _CustomerRule(NamedTuple):
    """The rule of a source for customer ids, and a query that applies it to some or all customers."""

    query_name: str
    query: dict[str, Any]
    title: str
    normalise: Callable[[str], str]

    def normalised(self, customer_id: str) -> str:
        """The id as partition keys have it. An invalid id stays as it is and is refused later, with its place."""
        try:
            return self.normalise(customer_id)
        except ValueError:
            return customer_id


def _customer_rules(document: Document, hooks_of: HooksOf) -> list[_CustomerRule]:
    sources = dict(_maps(document, "sources"))
    rules = []
    for name, query in _maps(document, "queries"):
        source = query.get("source")
        kind = sources[source].get("kind") if isinstance(source, str) and source in sources else None
        hooks = hooks_of(kind) if isinstance(kind, str) else SourceHooks()
        if hooks.normalise_customer is not None:
            rules.append(_CustomerRule(name, query, hooks.title or str(source), hooks.normalise_customer))
    return rules


def _rules_by_customer(rules: Sequence[_CustomerRule]) -> Callable[[str], _CustomerRule | None]:
    """Finds the first rule that applies to a customer. The customers of each query are collected once."""
    asking = [(rule, set(_strings(rule.query.get("customers")))) for rule in rules]
    return lambda customer_id: next((rule for rule, only in asking if not only or customer_id in only), None)


def _normalise_customers(document: Document, hooks_of: HooksOf) -> None:
    """Replace customer ids by their normalised form, as in partition keys."""
    rules = _customer_rules(document, hooks_of)
    customers, rule_for = document.values.get("customers", []), _rules_by_customer(rules)
    for index, customer_id in _numbered_strings(customers, "id"):
        if rule := rule_for(customer_id):
            customers[index]["id"] = rule.normalised(customer_id)
    for rule in rules:
        for index, customer_id in _numbered_strings(rule.query.get("customers")):
            rule.query["customers"][index] = rule.normalised(customer_id)


def _refuse_customers_of_sources(document: Document, hooks_of: HooksOf) -> None:
    """Refuses ids that the source of a query does not accept. Customers of other sources may have any id."""
    rule_for = _rules_by_customer(_customer_rules(document, hooks_of))
    for index, customer_id in _numbered_strings(document.values.get("customers"), "id"):
        if rule := rule_for(customer_id):
            try:
                rule.normalise(customer_id)
            except ValueError as error:
                text = f"{customer_id!r} {error}, because {rule.query_name} fetches it from {rule.title}"
                document.refuse(("customers", index, "id"), text)


def _refuse_broken_references(document: Document, queries: Mapping[str, Query]) -> None:
    """Refuse `references` to unknown tables or fields, to fields of another type, and in a cycle."""
    tables = {f"{query.source}.{query.name}": query for query in queries.values()}
    needs: dict[str, set[str]] = {name: set() for name in tables}
    for table, query in tables.items():
        for index, check in enumerate(query.checks):
            if not isinstance(check, References):
                continue
            needs[table].add(check.to)
            trail: Trail = ("queries", query.name, "checks", index, "references")
            if check.to not in tables:
                document.refuse((*trail, "to"), _unknown("table", check.to, sorted(tables)))
            else:
                for text in _mismatches(check, query, tables[check.to]):
                    document.refuse(trail, text)
    for cycle in _cycles(needs):
        trail = ("queries", tables[cycle[0]].name, "checks")
        document.refuse(trail, f"tables refer to each other in a circle: {' -> '.join(cycle)}")


def _mismatches(check: References, query: Query, other: Query) -> Iterator[str]:
    ours = {field.name: field.type for field in query.fields}
    theirs = {field.name: field.type for field in other.fields}
    for mine, name in zip(check.fields, check.referenced_fields, strict=True):
        if name not in theirs:
            yield f"{name!r} is not a field of {check.to} (fields: {', '.join(theirs)}){did_you_mean(name, theirs)}"
        elif ours[mine] != theirs[name]:
            yield f"{mine} is a {ours[mine]}, {name} of {check.to} is a {theirs[name]}: they are never equal"


def _refuse_broken_models(document: Document) -> None:
    tables = {f"{query.get('source')}.{name}" for name, query in _maps(document, "queries")}
    tables |= {f"models.{name}" for name in document.values.get("models", {})}
    # an unknown source may come from a variable, and is refused elsewhere
    known = sorted(table for table in tables if table.split(".")[0] in (*document.values.get("sources", ()), "models"))
    needs: dict[str, set[str]] = {}
    for name, model in _maps(document, "models"):
        needed = dict(_numbered_strings(model.get("depends_on")))
        needs[f"models.{name}"] = {table for table in needed.values() if table.startswith("models.")}
        for index, table in needed.items():
            if table not in tables:
                document.refuse(("models", name, "depends_on", index), _unknown("table", table, known))
        alone = {other for other, body in _maps(document, "models") if body.get("per", "date") == "date"}
        if _is_per_customer(model) and needed and all(t.removeprefix("models.") in alone for t in needed.values()):
            text = "none of the tables that it depends on has customers: write per: date"
            document.refuse(("models", name, "per"), text)
        if name in document.values.get("queries", {}):
            other = document.place(("queries", name))
            document.refuse(("models", name), f"{name!r} is the name of a query already, at {other}")
    if needs:
        for index, customer_id in _numbered_strings(document.values.get("customers"), "id"):
            if customer_id == partition.ALL_CUSTOMERS:
                text = f"{customer_id!r} is the customer id of models over all customers: choose another id"
                document.refuse(("customers", index, "id"), text)
    for cycle in _cycles(needs):
        trail = ("models", cycle[0].removeprefix("models."), "depends_on")
        document.refuse(trail, f"models depend on each other in a circle: {' -> '.join(cycle)}")


def _is_per_customer(model: Mapping[str, Any]) -> bool:
    return model.get("per") in ("customer,date", ["customer", "date"])


def _cycles(needs: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield cycles that share no member, each from its first name back to it."""
    while True:
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            members: list[str] = error.args[1][:0:-1]  # the sorter lists dependencies first
            start = members.index(min(members))
            yield [*members[start:], *members[: start + 1]]
            needs = {name: others for name, others in needs.items() if name not in members}
        else:
            return

"""Loads the workspace file into settings, or raises one error that lists every problem."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from penstock.config.assets import Model, Query
from penstock.config.cross_checks import (
    normalise_customers,
    refuse_broken_models,
    refuse_broken_references,
    refuse_customers_of_sources,
    refuse_repeated_customers,
    refuse_unknown_names,
    refuse_unknown_names_in_alerts,
)
from penstock.config.customer_cache import KnownCustomers, known_customers, recall, remember
from penstock.config.document_items import named_sections, strings
from penstock.config.file import MERGED_MAPS, Document, FilesChanged, Trail, read_workspace_file
from penstock.config.secret_values import remember_secrets
from penstock.config.settings import SQLITE, WORKSPACE_FILE, Settings, SourceSettings
from penstock.config.source_hooks import HooksOf
from penstock.config.values import describe_problem
from penstock.errors import ConfigError
from penstock.redaction import SECRETS
from penstock.user_cache import UserCache


def find_workspace(start: Path) -> Path:
    """Return the nearest folder, from `start` upwards, that contains a workspace file; ConfigError if there is none."""
    folder = start.absolute()
    for candidate in (folder, *folder.parents):
        if (candidate / WORKSPACE_FILE).is_file():
            return candidate
    raise ConfigError(
        f"there is no {WORKSPACE_FILE} in {folder} or any folder above it: run `penstock init` to create one"
    )


def load_settings(
    path: Path, environ: Mapping[str, str], hooks_of: HooksOf, cache: UserCache | None = None
) -> Settings:
    """Load a workspace file, or that of a folder. Raises ConfigError with one line per problem. `hooks_of` returns the
    rules of a kind of source. With a cache, customers that were validated before are not validated again; the result
    and the errors are the same."""
    file = path / WORKSPACE_FILE if path.is_dir() else path
    if cache is not None and (known := recall(cache, file)) is not None:
        settings = _with_known_customers(file, environ, hooks_of, known)
        if settings is not None:
            return settings
    document = read_workspace_file(file, environ)
    written = list(strings(document.values.get("customers"), "id"))
    settings = _checked(document, hooks_of)
    known = None if cache is None else known_customers(document, written, settings)
    if cache is not None and known is not None and _with_known_customers(file, environ, hooks_of, known) == settings:
        remember(cache, file, known)
    return settings


def _with_known_customers(
    file: Path, environ: Mapping[str, str], hooks_of: HooksOf, known: KnownCustomers
) -> Settings | None:
    """The settings with customers from the cache; None if the files or the rules changed, and if anything is wrong:
    then the file is loaded without the cache, which reports every problem with its place."""
    try:
        document = read_workspace_file(file, environ, known.files)
        document.values["customers"] = [{"id": customer_id} for customer_id in known.written]
        settings = _checked(document, hooks_of, known)
        if list(strings(document.values["customers"], "id")) != known.ids:
            return None  # the rules of a source changed
        return settings
    except (ConfigError, FilesChanged, ValueError, OSError):
        return None


def _checked(document: Document, hooks_of: HooksOf, known: KnownCustomers | None = None) -> Settings:
    """Validate a document. Raises ConfigError with one line per problem."""
    remember_secrets(document, SECRETS)
    if document.incomplete:
        document.raise_if_refused()
    normalise_customers(document, hooks_of)
    settings = _validated(document, known)
    if settings is not None:
        refuse_broken_references(document, settings.queries)
    # These inspect the document instead of the models, so that one bad value does not hide the next problem.
    refuse_repeated_customers(document)
    refuse_unknown_names(document)
    refuse_unknown_names_in_alerts(document)
    refuse_customers_of_sources(document, hooks_of)
    refuse_broken_models(document)
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
    for name, body in [(own_name, written)] if alone else named_sections(document, "queries"):
        where: Trail = () if alone else ("queries", name)
        try:
            context = {"field_names": {name: list(strings(body.get("fields"), "name"))}}
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


def _validated(document: Document, known: KnownCustomers | None) -> Settings | None:
    names = {query: list(strings(body.get("fields"), "name")) for query, body in named_sections(document, "queries")}
    try:
        shaped = _shaped(document) if known is None else _shaped(document) | {"customers": ()}
        settings = Settings.model_validate(shaped, context={"field_names": names})
        return settings if known is None else settings.model_copy(update={"customers": known.customers()})
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
    spark = written.get("spark")
    if isinstance(spark, Mapping) and isinstance(spark.get("environment"), str) and "://" not in spark["environment"]:
        shaped["spark"] = {**spark, "environment": os.path.abspath(root / spark["environment"])}
    lineage = written.get("lineage")
    if isinstance(lineage, Mapping) and isinstance(lineage.get("file"), str):
        shaped["lineage"] = {**lineage, "file": os.path.abspath(root / lineage["file"])}
    shaped |= {section: dict(written[section]) for section in MERGED_MAPS if section in written}
    for name, body in named_sections(document, "sources"):
        common = SourceSettings.keys_in_yaml()
        options = {key: value for key, value in body.items() if key not in common}
        ours = {key: value for key, value in body.items() if key in common}
        options |= _from_the_root(ours.get("kind"), options, root)
        shaped["sources"][name] = {"name": name, "options": options, **ours}
    for section, model in (("queries", Query), ("models", Model)):
        for name, body in named_sections(document, section):
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
    file, mark, options = url.removeprefix(SQLITE).partition("?")
    if not url.startswith(SQLITE) or file in ("", ":memory:"):
        return url
    return f"{SQLITE}{os.path.abspath(root / file)}{mark}{options}"


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

"""Reads and writes contracts in files outside of a workspace: queries in YAML, or the Open Data Contract Standard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from penstock.config.assets import Query
from penstock.config.file import too_large
from penstock.config.loading import load_queries
from penstock.config.source_hooks import HooksOf
from penstock.config.values import describe_problem
from penstock.contract.odcs import from_odcs, is_odcs
from penstock.errors import ConfigError


def queries_in(path: Path, environ: Mapping[str, str], hooks_of: HooksOf) -> tuple[dict[str, Query], list[str]]:
    """Return the queries that a file describes, and notes on the parts that cannot be expressed as queries."""
    document = _parse_yaml(path)
    if not is_odcs(document):
        return load_queries(path, environ, hooks_of), []
    found, notes = from_odcs(document)
    return {name: checked_query(name, body, str(path)) for name, body in found.items()}, notes


def checked_query(name: str, body: Mapping[str, Any], where: str) -> Query:
    """Parse a query that does not come from a workspace file; ConfigError with one line per problem."""
    try:
        return Query.model_validate({**body, "name": name})
    except pydantic.ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc']))}: {describe_problem(p)}" for p in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{where}: {name}.{problem}" for problem in problems)) from None


def as_yaml(queries: Mapping[str, Mapping[str, Any]], notes: list[str]) -> str:
    """Return a YAML file that a workspace can include, with the notes as comments at the top."""
    comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    return comments + dumped({"queries": {name: dict(body) for name, body in queries.items()}})


def dumped(document: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    return text


def _parse_yaml(path: Path) -> Any:
    """Return the parsed YAML, or None if it cannot be read: `load_queries` then reports the error with its place."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return None if too_large(text) else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError):
        return None

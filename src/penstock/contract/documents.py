"""Contracts in files outside of a workspace: as queries, or as documents of the Open Data Contract Standard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from penstock.config.assets import Query
from penstock.config.file import too_large
from penstock.config.settings import load_queries
from penstock.config.source_hooks import HooksOf
from penstock.config.values import in_words
from penstock.contract.odcs import from_odcs, is_odcs
from penstock.errors import ConfigError


def queries_in(path: Path, environ: Mapping[str, str], hooks_of: HooksOf) -> tuple[dict[str, Query], list[str]]:
    """The queries that a file describes, and notes on what of it has no counterpart."""
    document = _plain(path)
    if not is_odcs(document):
        return load_queries(path, environ, hooks_of), []
    found, notes = from_odcs(document)
    return {name: checked_query(name, body, str(path)) for name, body in found.items()}, notes


def checked_query(name: str, body: Mapping[str, Any], where: str) -> Query:
    """A query that was not read from a workspace file, refused in the same words."""
    try:
        return Query.model_validate({**body, "name": name})
    except pydantic.ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc']))}: {in_words(p)}" for p in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{where}: {name}.{problem}" for problem in problems)) from None


def as_yaml(queries: Mapping[str, Mapping[str, Any]], notes: list[str]) -> str:
    """A file that a workspace can include, with the notes as comments on top."""
    comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    return comments + dumped({"queries": {name: dict(body) for name, body in queries.items()}})


def dumped(document: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    return text


def _plain(path: Path) -> Any:
    """The file as YAML has it; what cannot be read is refused by whoever reads it as a workspace file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return None if too_large(text) else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError):
        return None

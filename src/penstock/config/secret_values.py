"""Finds the secrets of a workspace file: values of variables, and options that are named like secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.config.file import Document, Trail
from penstock.redaction import MASK, Redactor, names_a_secret

_CHANNELS = "alerts"  # addresses of channels are secrets: whoever knows one can post to it
_SECTIONS = ("state", "sources", "console", "lineage", _CHANNELS, "spark")
_NOT_SECRET = ("kind",)  # its value is the name of a class, which occurs in many messages


def remember_secrets(document: Document, secrets: Redactor) -> None:
    """Let `secrets` hide the secrets of the document: what the environment adds to the state URL, to options of sources
    and queries, and to the other sections that have passwords, and literal values under names of secrets."""
    for trail, value, written in document.expansions():
        if _may_hold_secrets(trail) and trail[-1] not in _NOT_SECRET:
            names = (written, str(trail[-1]))
            secrets.remember(value, written, is_named=trail[0] == _CHANNELS or any(map(names_a_secret, names)))
    for section in _SECTIONS:
        _remember_literals(document.values.get(section), section, secrets, is_channel=section == _CHANNELS)
    for options in _query_options(document):
        _remember_literals(options, "options", secrets)


def _may_hold_secrets(trail: Trail) -> bool:
    return trail[:1] != () and (trail[0] in _SECTIONS or (trail[0] == "queries" and trail[2:3] == ("options",)))


def _query_options(document: Document) -> Iterator[Any]:
    queries = document.values.get("queries")
    for query in queries.values() if isinstance(queries, dict) else ():
        if isinstance(query, dict) and "options" in query:
            yield query["options"]


def _remember_literals(value: Any, name: str, secrets: Redactor, *, is_channel: bool = False) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _remember_literals(item, str(key), secrets, is_channel=is_channel)
    elif isinstance(value, list):
        for item in value:
            _remember_literals(item, name, secrets, is_channel=is_channel)
    elif isinstance(value, str) and ("://" in value or names_a_secret(name)):
        secrets.remember(value, MASK, is_named=is_channel or names_a_secret(name))

"""Causes of failures: messages without the values that differ between partitions, so that one cause is one alert."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

_LENGTH = 300
# The order matters: a partition key and a date are no numbers, and a quoted value may contain anything. An apostrophe
# inside of a word quotes nothing.
_VALUES = (
    (re.compile(r"\b[a-z][a-z0-9_]*/[^/\s]+/[a-z0-9_]+/\d{4}-\d\d-\d\d\b"), "*"),
    (re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`"), "'*'"),
    (re.compile(r"https?://\S+|s3://\S+|(?<!\w)/[\w./-]+"), "*"),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b"), "*"),
    (re.compile(r"\d+(?:[.,:/T-]\d+)*"), "#"),
    (re.compile(r"\s+"), " "),
)


@lru_cache(maxsize=10_000)
def normalised(message: str) -> str:
    """The message with numbers, dates, ids, paths and quoted values replaced."""
    text = message[: 4 * _LENGTH]
    for pattern, replacement in _VALUES:
        text = pattern.sub(replacement, text)
    return text.strip()[:_LENGTH]


def cause_subject(source: str, error_class: str | None, message: str) -> str:
    """The subject of an alert about failures with this cause."""
    digest = hashlib.sha256(normalised(message).encode()).hexdigest()[:12]
    return f"{source}/{error_class or 'unknown'}/{digest}"

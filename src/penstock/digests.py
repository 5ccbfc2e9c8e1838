"""Format of content digests: a digest carries the version of its algorithm, `2:` and 64 hexadecimal digits.

Digests without a version were written by earlier releases: with algorithm 2, or by the first of them with algorithm 1.
"""

from __future__ import annotations

VERSION = "2"
_PREFIX = f"{VERSION}:"


def versioned(digest: str) -> str:
    """Add the version prefix to a digest of the current algorithm."""
    return _PREFIX + digest


def comparable(digest: str) -> str:
    """Return the digest in a form that does not depend on the release that wrote it: digests of the same rows by the
    same algorithm are equal."""
    return digest.removeprefix(_PREFIX)


def same_content_sql(one: str, other: str) -> str:
    """The SQL condition that two columns hold digests of the same rows by the same algorithm."""
    return f"replace({one}, '{_PREFIX}', '') = replace({other}, '{_PREFIX}', '')"


def may_be_of_first_algorithm(digest: str) -> bool:
    return ":" not in digest

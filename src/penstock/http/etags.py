"""ETags of responses, and the comparison with If-None-Match.

An ETag is the digest of a document. It is the same in all instances of the server and changes only with the document,
whatever the document depends on: the ledger, control metadata, the configuration, the local day, a deadline. Values
that are expensive to compute (grid, status) are kept by the position of the ledger, so that a poll without changes is
cheap.
"""

from __future__ import annotations

import hashlib
import re

_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*)"')


def content_tag(content: bytes) -> str:
    """The tag of a document."""
    return hashlib.sha256(content).hexdigest()[:32]


def header_of(tag: str) -> str:
    """The header ETag. It is weak, because the compressed and the plain response share it."""
    return f'W/"{tag}"'


def matches(if_none_match: str | None, tag: str) -> bool:
    """Whether the header If-None-Match names the tag."""
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or tag in _TAG.findall(if_none_match)

"""Cursors of lists: opaque texts that name the list and the place where it continues.

A cursor gives no rights, so it is not secret. It carries a digest of the list, so that a cursor of another list, with
other filters, or a changed one is refused instead of returning wrong items.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from penstock.errors import UsageError
from penstock.http.parameters import LAST_ID

_DIGEST_BYTES = 12


def write_cursor(place: str, of_list: str) -> str:
    """The cursor that continues a list at a place."""
    text = place.encode()
    return base64.urlsafe_b64encode(_digest(text, of_list) + text).rstrip(b"=").decode()


def read_cursor(cursor: str, of_list: str) -> str:
    """The place of a cursor. Raises UsageError if it was not written for this list."""
    try:
        data = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        digest, place = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if digest == _digest(place, of_list) and b"\x00" not in place:
            return place.decode()
    except (binascii.Error, ValueError):
        pass
    raise _not_valid()


def position_of(place: str) -> int:
    """The position in a list that is ordered by numbers. Raises UsageError for a place of another kind."""
    if place.isascii() and place.isdigit() and len(place) < 20 and (number := int(place)) <= LAST_ID:
        return number
    raise _not_valid()


def _not_valid() -> UsageError:
    return UsageError("the cursor is not valid for this list: take `next` of a page with the same filters")


def _digest(place: bytes, of_list: str) -> bytes:
    return hashlib.sha256(of_list.encode() + b"\n" + place).digest()[:_DIGEST_BYTES]

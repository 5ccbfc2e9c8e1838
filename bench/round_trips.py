"""Counts the round trips of a timeline of requests: the largest number of requests of which none overlaps another."""

from __future__ import annotations

from collections.abc import Iterable

Timed = tuple[float, float, str, str]  # begin, end, method and kind of object, path


def round_trips(requests: Iterable[Timed]) -> int:
    """How many requests followed each other. Storage that answers after a delay adds this many delays to the time, if
    nothing else is done meanwhile."""
    found, until = 0, float("-inf")
    for began, ended, _, _ in sorted(requests, key=lambda request: request[1]):
        if began >= until:
            found, until = found + 1, ended
    return found

"""Numbers with their nouns, in the singular or the plural."""

from __future__ import annotations


def counted(number: int, noun: str = "partition", plural: str | None = None) -> str:
    """`1 partition`, `12,000 partitions`. Pass `plural` for a phrase that does not end with its noun."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"

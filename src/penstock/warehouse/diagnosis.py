"""Errors that damaged files made are replaced by errors that name the files. Workers import this: it imports little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError, TerminalError

Diagnose = Callable[[], PenstockError | None]


@contextmanager
def explained(diagnose: Diagnose | None, *kinds: type[Exception]) -> Iterator[None]:
    """Raises the error that names damaged files instead of one of these kinds, if there are any."""
    try:
        yield
    except kinds as error:
        found = diagnosis(diagnose)
        if found is None:
            raise
        raise found from error


def diagnosis(diagnose: Diagnose | None) -> PenstockError | None:
    """The error that names what is damaged; None also if the storage or the database does not answer now."""
    try:
        return diagnose() if diagnose else None
    except TerminalError as error:
        return error
    except (PenstockError, OSError):
        return None

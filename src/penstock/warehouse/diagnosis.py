"""Replaces errors that damaged files cause by errors that name the files. Spark workers import this module, so it has
few imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError, TerminalError

Diagnose = Callable[[], PenstockError | None]


@contextmanager
def explained(diagnose: Diagnose | None, *kinds: type[Exception]) -> Iterator[None]:
    """Raises the error that names damaged files instead of an error of these kinds, if files are damaged."""
    try:
        yield
    except kinds as error:
        found = diagnosis(diagnose)
        if found is None:
            raise
        raise found from error


def diagnosis(diagnose: Diagnose | None) -> PenstockError | None:
    """The error that names the damaged files; None if there are none, or if the storage or the database does not
    respond."""
    try:
        return diagnose() if diagnose else None
    except TerminalError as error:
        return error
    except (PenstockError, OSError):
        return None

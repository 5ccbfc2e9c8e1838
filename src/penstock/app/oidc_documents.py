"""Documents of the identity provider: fetched by one thread at a time, and kept for a while.

Anyone can ask for the way to the provider. While the provider hangs, those requests must not occupy every thread of the
server: one waits for the provider, and the others get an error at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.errors import LoginUnavailable, PenstockError

T = TypeVar("T")

KEPT = 600.0  # seconds for which a document is used
FAILURE_KEPT = 5.0  # seconds for which a failure is repeated without a request


class ProviderDocument(Generic[T]):
    """A document that `fetch` requests. Threads may share it."""

    def __init__(self, fetch: Callable[[], T]) -> None:
        self._fetch = fetch
        self._fetching = threading.Lock()
        self._kept: tuple[float, T] | None = None  # until when, and the document
        self._failure: tuple[float, PenstockError] | None = None

    def current(self, *, waits: bool = False) -> T:
        """The document. While another thread fetches it: the earlier one, or with `waits` the one that is fetched.
        Raises LoginUnavailable if there is none, or if the provider does not respond."""
        kept = self._kept
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        if not self._fetching.acquire(blocking=waits):
            if kept is not None:
                return kept[1]
            raise LoginUnavailable("the identity provider has not responded yet: try again in some seconds")
        try:
            return self._fetched_instead_of(kept)
        finally:
            self._fetching.release()

    def newer_than(self, document: T) -> T:
        """A document that was fetched after this one. Waits while another thread fetches it."""
        with self._fetching:
            kept = self._kept
            return kept[1] if kept is not None and kept[1] is not document else self._fetched_instead_of(kept)

    def _fetched_instead_of(self, known: tuple[float, T] | None) -> T:
        if self._kept is not None and self._kept is not known:  # another thread was faster
            return self._kept[1]
        if self._failure is not None and time.monotonic() < self._failure[0]:
            error = self._failure[1]
            raise type(error)(*error.args)
        try:
            found = self._fetch()
        except PenstockError as error:
            self._failure = (time.monotonic() + FAILURE_KEPT, error)
            raise
        self._kept = (time.monotonic() + KEPT, found)
        return found

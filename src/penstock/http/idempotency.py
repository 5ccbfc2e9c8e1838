"""The header Idempotency-Key: a repeated request is executed once, and gets the first response for a day."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, UsageError
from penstock.failpoint import reach
from penstock.http.problems import MEDIA_TYPE, RequestInProgress, RequestRefused

if TYPE_CHECKING:
    from penstock.http.routes import Route
    from penstock.state.idempotency import IdempotencyStore, RequestRecord

log = logging.getLogger(__name__)

_KEY = re.compile(r"[\x21-\x7e]{1,200}")

Answer = tuple[int, bytes, str]  # status, content, media type


class RepeatedRequests:
    """Executes each request of a key once. Safe to call from several threads.

    A record of this process that no thread executes is an orphan: the database did not respond when it was to be
    answered or given up. The next request with its key executes it again, and `release_orphans` lets other servers.
    """

    def __init__(self, worker_token: str) -> None:
        self._worker_token = worker_token
        self._executing: set[tuple[str, str]] = set()  # actor and key
        self._orphans: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def execute_once(
        self,
        store: IdempotencyStore,
        route: Route,
        actor: str,
        key: str,
        request: bytes,
        execute: Callable[[str], Answer],
    ) -> tuple[Answer, bool]:
        """Execute a request that no other request with the key executes or has executed, else return its response. The
        flag says whether the response is a repeated one. `execute` takes the id of what the request creates.

        Raises RequestRefused if the key belongs to another request, and RequestInProgress while the first request is
        executed.
        """
        if not _KEY.fullmatch(key):
            raise UsageError("Idempotency-Key must have 1 to 200 printable ASCII characters")
        if not route.keeps_response:
            raise UsageError(f"{route.name} takes no Idempotency-Key: its response holds a secret and is not stored")
        digest = hashlib.sha256(route.name.encode() + b"\n" + request).hexdigest()
        name = (actor, key)
        if not self._enter(name):
            return _repeated(store.find(actor, key), digest), True
        try:
            record = store.begin(actor, key, digest, self._worker_token)
            if not record.is_mine:
                return _repeated(record, digest), True
            try:
                answer = execute(record.reserved_id)
                reach("request.executed")
                store.finish(actor, key, self._worker_token, answer[0], answer[1].decode())
            except BaseException:
                self._give_up(store, name)
                raise
            return answer, False
        finally:
            self._leave(name)

    def release_orphans(self, store: IdempotencyStore) -> None:
        """Give up the requests that could not be given up before. Call it when the database responds."""
        if not self._orphans:
            return
        with self._lock:
            names = self._orphans - self._executing
            self._orphans -= names
            self._executing |= names
        for name in names:
            try:
                self._give_up(store, name)
            finally:
                self._leave(name)

    def _give_up(self, store: IdempotencyStore, name: tuple[str, str]) -> None:
        try:
            store.give_up(*name, self._worker_token)
        except PenstockError as error:
            log.warning("request.not_given_up", extra={"facts": {"error": str(error)}})
            with self._lock:
                self._orphans.add(name)

    def _enter(self, name: tuple[str, str]) -> bool:
        with self._lock:
            if name in self._executing:
                return False
            self._executing.add(name)
            self._orphans.discard(name)
            return True

    def _leave(self, name: tuple[str, str]) -> None:
        with self._lock:
            self._executing.discard(name)


def _repeated(record: RequestRecord | None, digest: str) -> Answer:
    """The response of a request that was executed before."""
    if record is not None and record.request_digest != digest:
        raise RequestRefused(
            "the Idempotency-Key belongs to another request: use a new key for each request",
            HTTPStatus.UNPROCESSABLE_ENTITY,
        )
    if record is None or record.status is None or record.response is None:
        raise RequestInProgress("a request with this Idempotency-Key is in progress: repeat it later")
    media_type = MEDIA_TYPE if record.status >= HTTPStatus.BAD_REQUEST else "application/json"
    return record.status, record.response.encode(), media_type

"""The heartbeat of a worker, sent from a thread while it works."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from penstock import interrupts
from penstock.errors import PenstockError
from penstock.state.worker import HEARTBEAT_SECONDS, WorkerStore

log = logging.getLogger(__name__)


class Heartbeat:
    """Registers a worker on entry, renews its leases while it works, and deregisters it on exit."""

    def __init__(self, workers: WorkerStore, *, control_loop: bool = False) -> None:
        self._workers = workers
        self._control_loop = control_loop
        self._done = threading.Event()
        self.token = ""

    def __enter__(self) -> Self:
        interrupts.begin_work()
        self.token = self._workers.register(control_loop=self._control_loop)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._done.set()
        self._thread.join()
        self._workers.stop(self.token)

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_SECONDS):
            try:
                self._workers.heartbeat(self.token)
            except PenstockError as error:  # the next one may succeed; if none does, the lease expires
                log.warning("heartbeat.missed", extra={"facts": {"worker": self.token, "error": str(error)}})

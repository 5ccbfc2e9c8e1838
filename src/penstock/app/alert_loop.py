"""Evaluates alerts and delivers notifications in a thread beside the rounds of the control loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.app.alerts import AlertService

log = logging.getLogger(__name__)

_LONGEST_JOIN = 15.0  # seconds that the end of the loop waits for a request in progress
_DELIVERY_SECONDS = 20.0  # a long queue to a slow channel does not delay the next evaluation


class AlertLoop:
    """Evaluates at the interval of the workspace file while it is open. An error is logged: it never reaches a round,
    and a channel that does not respond delays no round. Without `alerts` in the workspace file it does nothing."""

    def __init__(self, alerts: AlertService, worker_token: str) -> None:
        self._alerts = alerts
        self._worker_token = worker_token
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._alerts.settings is not None:
            self._thread = threading.Thread(target=copy_context().run, args=(self._work,), name="alerts", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(_LONGEST_JOIN)
            if not self._thread.is_alive():
                run_once(self._alerts, self._worker_token)

    def _work(self) -> None:
        settings = self._alerts.settings
        while settings is not None:
            run_once(self._alerts, self._worker_token, self._done)
            if self._done.wait(settings.every.total_seconds()):
                return


def run_once(alerts: AlertService, worker_token: str, stop: threading.Event | None = None) -> None:
    """Evaluate the rules, and deliver what is due for a limited time, if there are rules. An error is logged and not
    raised; one of the evaluation does not stop the delivery."""
    if alerts.settings is None:
        return
    _logged(lambda: alerts.evaluate(worker_token))
    end = time.monotonic() + _DELIVERY_SECONDS
    stopped = stop.is_set if stop is not None else lambda: False
    _logged(lambda: alerts.deliver(worker_token, lambda: stopped() or time.monotonic() > end))


def _logged(work: Callable[[], object]) -> None:
    try:
        work()
    except PenstockError as error:
        log.warning("alerts.failed", extra={"facts": {"error": str(error)}})
    except Exception:  # a defect in alerting must not stop the control loop
        log.exception("alerts.failed", extra={"facts": {}})

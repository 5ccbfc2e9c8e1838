"""Triggers: they poll the server while a task is deferred.

Requests block, so they run in a thread. A server that does not respond is asked again; every other error ends the wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from penstock.client import Client
from penstock.errors import PenstockError, TransientError
from penstock_airflow.hooks import PenstockHook, described
from penstock_airflow.orders import is_over, progress
from penstock_airflow.readiness import ReadyQuestion


class _PollingTrigger(BaseTrigger):
    """Polls until there is a payload, at most until `deadline` (seconds since 1970), which survives a restart."""

    def __init__(self, penstock_conn_id: str, poll_interval: float, deadline: float | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.penstock_conn_id = penstock_conn_id
        self.poll_interval = poll_interval
        self.deadline = deadline
        self._logged = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        shared = {
            "penstock_conn_id": self.penstock_conn_id,
            "poll_interval": self.poll_interval,
            "deadline": self.deadline,
        }
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {**self.arguments(), **shared}

    def arguments(self) -> dict[str, Any]:
        """The arguments of this kind of trigger, as JSON values."""
        raise NotImplementedError

    def poll(self, client: Client, *, is_last: bool) -> dict[str, Any] | None:
        """The payload of the event that ends the wait; None to ask again. Blocks."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = await PenstockHook(self.penstock_conn_id).load()
        with hook.get_conn() as client:
            while True:
                is_last = self.deadline is not None and time.time() >= self.deadline
                try:
                    payload = await asyncio.to_thread(self.poll, client, is_last=is_last)
                except TransientError as error:
                    self.log.warning("%s", error)
                    payload = {**self.arguments(), "timeout": [str(error)]} if is_last else None
                except PenstockError as error:
                    payload = {"error": described(error, self.penstock_conn_id)}
                if payload is not None:
                    yield TriggerEvent(payload)
                    return
                await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        if self.deadline is None:
            return self.poll_interval
        return max(0.0, min(self.poll_interval, self.deadline - time.time()))

    def log_change(self, text: str) -> None:
        """Log a text if it is not the one that was logged last."""
        if text != self._logged:
            self._logged = text
            self.log.info("%s", text)


class PenstockReadyTrigger(_PollingTrigger):
    """Waits until tables are ready. Its event has `ready`, `timeout` with what is missing, or `error`."""

    def __init__(
        self,
        question: dict[str, Any],
        penstock_conn_id: str,
        poll_interval: float = 60.0,
        deadline: float | None = None,
    ) -> None:
        super().__init__(penstock_conn_id, poll_interval, deadline)
        self.question = ReadyQuestion(**question)

    def arguments(self) -> dict[str, Any]:
        return {"question": self.question.as_dict()}

    def poll(self, client: Client, *, is_last: bool) -> dict[str, Any] | None:
        answer = self.question.answer(client)
        if answer.ready:
            return {"ready": answer.summary()}
        self.log_change("not ready:\n" + "\n".join(answer.missing()))
        return {**self.arguments(), "timeout": answer.missing()} if is_last else None


class PenstockOrderTrigger(_PollingTrigger):
    """Waits until an order ended. Its event has `order`, `timeout` with the last progress, or `error`."""

    def __init__(
        self, order_id: str, penstock_conn_id: str, poll_interval: float = 5.0, deadline: float | None = None
    ) -> None:
        super().__init__(penstock_conn_id, poll_interval, deadline)
        self.order_id = order_id

    def arguments(self) -> dict[str, Any]:
        return {"order_id": self.order_id}

    def poll(self, client: Client, *, is_last: bool) -> dict[str, Any] | None:
        order = client.show_order(self.order_id)
        text = progress(client, order)
        self.log_change(text)
        if is_over(order):
            return {"order": order}
        return {**self.arguments(), "timeout": [text]} if is_last else None

    async def on_kill(self) -> None:
        """Cancel the order: a user ended the deferred task."""
        hook = await PenstockHook(self.penstock_conn_id).load()
        with hook.get_conn() as client:
            requested = await asyncio.to_thread(client.cancel_order, self.order_id)
        self.log.info("order %s: %s", self.order_id, "cancelled" if requested else "was over")

"""The Penstock server as a Dagster resource: a client, and orders that are followed to their end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from penstock.client import Client
from penstock.errors import PenstockError, TransientError
from pydantic import Field


class PenstockResource(dg.ConfigurableResource[Any]):
    """A server of the HTTP API (`penstock serve`).

    >>> PenstockResource(url="https://penstock.example.com", token=dg.EnvVar("PENSTOCK_TOKEN"))
    """

    url: str = Field(description="The address of `penstock serve`.")
    token: str | None = Field(
        default=None,
        description="A token of `penstock tokens create`: role viewer for the sensor and checks, operator for orders.",
    )
    timeout: float = Field(default=30.0, description="The longest time of one request, in seconds.")

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client for the block. An error that the server reports becomes a Failure with its remedy.

        >>> with penstock.client() as client:
        ...     client.ready("demo.campaign_daily", date="2024-06-01")
        """
        try:
            with Client(self.url, self.token, timeout=self.timeout) as client:
                yield client
        except PenstockError as error:
            raise dg.Failure(
                f"{self.url}: {error}. {error.remedy}", allow_retries=isinstance(error, TransientError)
            ) from error

    def order_run(
        self,
        selection: dict[str, Any],
        *,
        reprocess: bool = False,
        force: bool = False,
        reason: str | None = None,
        idempotency_key: str | None = None,
        patience: float = 6 * 3600,
        every: float = 2.0,
    ) -> dict[str, Any]:
        """Order a run and wait at most `patience` seconds for its end. Returns the order; its `result` has the counts,
        and rejected partitions are no error. Raises a Failure if the order fails, is cancelled, or is not over in time.

        With the same `idempotency_key`, a repeated call follows the first order. An interruption of the Dagster run
        cancels the order. While the server does not respond, the order goes on and is asked for again.

        >>> penstock.order_run({"queries": ["campaign_daily"], "since": "2024-06-01"}, reason="source fixed")["result"]
        """
        with self.client() as client:
            order = client.order_run(
                selection, reprocess=reprocess, force=force, reason=reason, idempotency_key=idempotency_key
            )
            try:
                found = _followed(client, order, time.monotonic() + patience, every)
            except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
                client.cancel_order(order["order_id"])
                raise
            if found["state"] != "succeeded":
                raise _failure(found, f"{client.url}/runs/orders/{found['order_id']}", patience)
            return found


def _followed(client: Client, order: dict[str, Any], deadline: float, every: float) -> dict[str, Any]:
    """The order when it is over, or at the deadline."""
    log, warned = dg.get_dagster_logger("penstock"), None
    log.info(f"order {order['order_id']}: {client.url}/runs/orders/{order['order_id']}")
    while order["finished_at"] is None and time.monotonic() < deadline:
        if order["warning"] not in (None, warned):
            warned = order["warning"]
            log.warning(f"order {order['order_id']} is {order['state']}: {warned}")
        time.sleep(min(every, max(0.0, deadline - time.monotonic())))
        try:
            order = client.show_order(order["order_id"])
        except TransientError as error:
            log.warning(f"order {order['order_id']}: {error}; asking again")
    return order


def _failure(order: dict[str, Any], link: str, patience: float) -> dg.Failure:
    reason = order["error"] or order["warning"] or "see its page"
    text = f"order {order['order_id']} is {order['state']}: {reason}"
    if order["finished_at"] is None:
        text = f"order {order['order_id']} is {order['state']} after {patience:g} s and goes on: {reason}"
    return dg.Failure(text, metadata={"order": dg.MetadataValue.url(link)}, allow_retries=False)

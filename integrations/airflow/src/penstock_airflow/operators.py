"""The operator that orders a run and follows it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.client import Client
from penstock.errors import PenstockError, TransientError, UsageError
from penstock_airflow.assets import emit_days, table_of
from penstock_airflow.connections import Server
from penstock_airflow.hooks import DEFAULT_CONNECTION, PenstockHook, described
from penstock_airflow.links import CONSOLE_PAGE, PenstockConsoleLink
from penstock_airflow.orders import failure, is_over, progress, published_days
from penstock_airflow.triggers import PenstockOrderTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_ORDER = "penstock_order_id"  # of this task instance, in the task state store: it survives a lost worker
_PLACE_TRIES = 5


class PenstockRunOperator(BaseOperator):
    """Orders a run of the partitions of a selection, and waits until the control loop executed it.

    A selection has keys, source, customers, queries, since, until and status; without one, everything that is due is
    fetched. The task fails with the error of the order. Rejected partitions fail it only with `fail_on_rejected`:
    the retry policy of their query decides about them, and a PenstockReadySensor decides whether a day is usable.

    The XCom is the result of the order. Assets of tables among the outlets get an event for each day of which the order
    published a partition, with the day as partition key. If the worker is lost, the next try follows the same order.

    >>> PenstockRunOperator(task_id="fetch", selection={"queries": ["campaign_daily"], "since": "{{ ds }}"})
    """

    template_fields: Sequence[str] = ("selection", "reason", "penstock_conn_id")
    template_fields_renderers = {"selection": "json"}  # noqa: RUF012 - Airflow declares it without ClassVar
    operator_extra_links = (PenstockConsoleLink(),)

    def __init__(
        self,
        *,
        selection: Mapping[str, Any] | None = None,
        reason: str | None = "Airflow: {{ dag.dag_id }}, {{ run_id }}",
        reprocess: bool = False,
        force: bool = False,
        fail_on_rejected: bool = False,
        poll_interval: float = 5.0,
        penstock_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.selection = selection
        self.reason = reason
        self.reprocess = reprocess
        self.force = force
        self.fail_on_rejected = fail_on_rejected
        self.poll_interval = poll_interval
        self.penstock_conn_id = penstock_conn_id
        self.deferrable = deferrable
        self._placed: tuple[Server, str] | None = None  # read by on_kill, which runs in a signal handler

    def execute(self, context: Context) -> dict[str, Any]:
        """Place the order and follow it, in this process or in a trigger."""
        server = PenstockHook(self.penstock_conn_id).server
        try:
            with server.client() as client:
                order = self._earlier_order(client, context) or self._new_order(client, context)
                self._placed = (server, order["order_id"])
                context["task_state_store"].set(_ORDER, order["order_id"])
                context["ti"].xcom_push(key=CONSOLE_PAGE, value=server.order_page(order["order_id"]))
                if self.deferrable and not is_over(order):
                    self._defer(order["order_id"])
                return self._finish(client, context, self._follow(client, order))
        except PenstockError as error:
            raise self._translated(error) from error

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """End the task with the event of the trigger. Cancels an order that exceeds the time limit."""
        server = PenstockHook(self.penstock_conn_id).server
        if "error" in event:
            raise AirflowFailException(event["error"])
        try:
            with server.client() as client:
                if "timeout" in event:
                    order_id, text = event["order_id"], "\n".join(event["timeout"])
                    client.cancel_order(order_id)
                    context["task_state_store"].delete(_ORDER)
                    raise AirflowException(f"cancelled order {order_id}: execution_timeout is over; {text}")
                return self._finish(client, context, event["order"])
        except PenstockError as error:
            raise self._translated(error) from error

    def on_kill(self) -> None:
        """Cancel the order, and its run if it has begun. Airflow calls it when the task is killed or takes too long."""
        if self._placed is None:
            return
        server, order_id = self._placed
        try:
            with server.client() as client:  # its own: the handler may have interrupted a request of the other one
                requested = client.cancel_order(order_id)
        except PenstockError as error:
            self.log.error("order %s is not cancelled: %s", order_id, described(error, self.penstock_conn_id))
            return
        self.log.info("order %s: %s", order_id, "cancelled" if requested else "was over")

    def _earlier_order(self, client: Client, context: Context) -> dict[str, Any] | None:
        """The order of an earlier try that no task followed to its end; None if there is none."""
        order_id = context["task_state_store"].get(_ORDER)
        if order_id is None:
            return None
        try:
            order = client.show_order(str(order_id))
        except UsageError as error:  # the server has another database than the one of the earlier try
            self.log.warning("%s", error)
            return None
        if order["state"] == "cancelled":
            return None
        self.log.info("following order %s of an earlier try", order_id)
        return order

    def _new_order(self, client: Client, context: Context) -> dict[str, Any]:
        task = context["ti"]
        order = self._place(client, f"airflow/{task.id}/{task.try_number}")
        self.log.info("placed order %s: %s", order["order_id"], order["selection"])
        return order

    def _place(self, client: Client, key: str) -> dict[str, Any]:
        """Place an order. The key makes a repeated request harmless if only its response was lost."""
        for left in reversed(range(_PLACE_TRIES)):
            try:
                return client.order_run(
                    self.selection, reprocess=self.reprocess, force=self.force, reason=self.reason, idempotency_key=key
                )
            except TransientError as error:
                if not left:
                    raise
                self.log.warning("%s", error)
                time.sleep(self.poll_interval)
        raise AssertionError("the last try returns or raises")

    def _follow(self, client: Client, order: dict[str, Any]) -> dict[str, Any]:
        """Log the progress of an order until it is over, and return it."""
        logged = ""
        while True:
            try:
                order = client.show_order(order["order_id"])
                text = progress(client, order)
            except TransientError as error:
                text = str(error)
            if text != logged:
                self.log.info("%s", text)
                logged = text
            if is_over(order):
                return order
            time.sleep(self.poll_interval)

    def _defer(self, order_id: str) -> NoReturn:
        limit = self.execution_timeout
        trigger = PenstockOrderTrigger(
            order_id=order_id,
            penstock_conn_id=self.penstock_conn_id,
            poll_interval=self.poll_interval,
            deadline=None if limit is None else time.time() + limit.total_seconds(),
        )
        self.defer(trigger=trigger, method_name="resume")

    def _finish(self, client: Client, context: Context, order: dict[str, Any]) -> dict[str, Any]:
        """The result of a finished order, with asset events for the days that it published. Raises AirflowException if
        the order failed."""
        error = failure(order, fail_on_rejected=self.fail_on_rejected)
        if error is None:
            result = order["result"]
            facts = {"order_id": order["order_id"], "run_id": result["run_id"]}
            has_tables = any(table_of(asset, self.penstock_conn_id) for asset in self.outlets)
            published = published_days(client, order) if has_tables else {}
            for table, found in emit_days(self, context, self.penstock_conn_id, published, facts).items():
                self.log.info("asset events: %s %s", table, ", ".join(found))
            for problem in result.get("problems", ()):
                self.log.warning("%s", problem)
            self.log.info("order %s: %s", order["order_id"], result["counts"])
        context["task_state_store"].delete(_ORDER)  # the next try, or a cleared task, places a new order
        if error is not None:
            raise AirflowException(error)
        return {"order_id": order["order_id"], **order["result"]}

    def _translated(self, error: PenstockError) -> AirflowException:
        """The error of a request: the task is retried only if the same request may succeed later."""
        kind = AirflowException if isinstance(error, TransientError) else AirflowFailException
        return kind(described(error, self.penstock_conn_id))

"""The sensor that waits until tables are ready."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout

from penstock.errors import PenstockError, TransientError
from penstock_airflow.assets import emit_days, table_of
from penstock_airflow.hooks import DEFAULT_CONNECTION, PenstockHook, described
from penstock_airflow.readiness import ReadyQuestion
from penstock_airflow.triggers import PenstockReadyTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_GRACE = timedelta(minutes=5)  # the trigger reports a timeout itself; Airflow ends a wait without a live triggerer


class PenstockReadySensor(BaseSensorOperator):
    """Waits until the expected partitions of tables are published, as `penstock ready` decides.

    `require` is the rule for each day: all, any, a number, or a share such as 95%. Without a day, every day that is due
    so far must be ready. The log has what is missing by cause, and so has the error of a timeout. With a `date`, assets
    of the tables among the outlets get an event with the day as partition key.

    >>> PenstockReadySensor(task_id="ready", tables=["demo.campaign_daily"], date="{{ ds }}", require="95%")
    """

    template_fields: Sequence[str] = (
        "tables",
        "date",
        "since",
        "until",
        "require",
        "customers",
        "penstock_conn_id",
    )

    def __init__(
        self,
        *,
        tables: Sequence[str] | str,
        date: str | None = None,
        since: str | None = None,
        until: str | None = None,
        require: str | int = "all",
        customers: Sequence[str] = (),
        penstock_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.tables = tables
        self.date = date
        self.since = since
        self.until = until
        self.require = str(require)
        self.customers = customers
        self.penstock_conn_id = penstock_conn_id
        self.deferrable = deferrable
        self._missing: list[str] = []
        if date is None and any(table_of(asset, penstock_conn_id) for asset in self.outlets):
            raise ValueError(f"{self.task_id}: asset events have a day as partition key: set date")

    def poke(self, context: Context) -> PokeReturnValue:
        """Ask once. A server that does not respond counts as not ready."""
        try:
            with PenstockHook(self.penstock_conn_id).get_conn() as client:
                answer = self._question().answer(client)
        except TransientError as error:
            self._missing = [str(error)]
            self.log.warning("%s", error)
            return PokeReturnValue(False)
        except PenstockError as error:
            raise AirflowFailException(described(error, self.penstock_conn_id)) from error
        self._missing = answer.missing()
        if not answer.ready:
            self.log.info("not ready:\n%s", "\n".join(self._missing))
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._finish(context, answer.summary()))

    def execute(self, context: Context) -> Any:
        """Wait in this process, or defer if the tables are not ready yet."""
        if self.deferrable:
            found = self.poke(context)
            return found.xcom_value if found else self._defer()
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(_timed_out(self.timeout, self._missing)) from error

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """End the task with the event of the trigger. Raises AirflowSensorTimeout with what is missing."""
        if "ready" in event:
            return self._finish(context, event["ready"])
        if "timeout" in event:
            raise AirflowSensorTimeout(_timed_out(self.timeout, event["timeout"]))
        raise AirflowFailException(event["error"])

    def _defer(self) -> NoReturn:
        trigger = PenstockReadyTrigger(
            question=self._question().as_dict(),
            penstock_conn_id=self.penstock_conn_id,
            poll_interval=self.poke_interval,
            deadline=time.time() + self.timeout,
        )
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout) + _GRACE)

    def _finish(self, context: Context, summary: dict[str, Any]) -> dict[str, Any]:
        days = {table["table"]: [table["since"]] for table in summary["tables"] if self.date}
        emitted = emit_days(self, context, self.penstock_conn_id, days, {"require": summary["require"]})
        self.log.info("ready: %s", ", ".join(table["table"] for table in summary["tables"]))
        for table, found in emitted.items():
            self.log.info("asset event: %s %s", table, found[0])
        return summary

    def _question(self) -> ReadyQuestion:
        tables = [self.tables] if isinstance(self.tables, str) else list(self.tables)
        if not tables:
            raise AirflowException(f"{self.task_id}: name at least one table")
        return ReadyQuestion(
            tables=tables,
            require=self.require,
            date=self.date,
            since=self.since,
            until=self.until,
            customers=list(self.customers),
        )


def _timed_out(timeout: float, missing: Sequence[str]) -> str:
    return f"not ready after {timeout:g} s:\n" + "\n".join(missing)

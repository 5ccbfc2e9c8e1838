"""The link of a task to the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

CONSOLE_PAGE = "_link_PenstockConsoleLink"  # the XCom from which Airflow reads the link, also while the task runs


class PenstockConsoleLink(BaseOperatorLink):
    """The page of the order of a task in the console of Penstock."""

    name = "Penstock console"
    xcom_key = CONSOLE_PAGE

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address of the page; empty if no order was placed."""
        return str(XCom.get_value(key=CONSOLE_PAGE, ti_key=ti_key) or "")

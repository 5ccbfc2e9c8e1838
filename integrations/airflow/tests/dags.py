"""DAG files that a test writes and runs."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finished:
    """A DAG run that is over."""

    dag_id: str
    run_id: str
    state: str
    tasks: dict[str, str]

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """A value that a task pushed."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            query = XComModel.get_many(
                run_id=self.run_id, key=key, task_ids=task_id, dag_ids=self.dag_id
            ).with_only_columns(XComModel.value)
            found = session.scalars(query).first()
        return XComModel.deserialize_value(type("Row", (), {"value": found})()) if found is not None else None

    def asset_events(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """The asset events of the run: address, partition key and extra, in the order of the keys."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            rows = session.execute(
                select(AssetModel.uri, AssetEvent.partition_key, AssetEvent.extra)
                .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
                .where(AssetEvent.source_run_id == self.run_id)
            ).all()
        return sorted((row[0], row[1], row[2]) for row in rows)


def example_of_the_page() -> str:
    """The file of DAGs in docs/howto/airflow.md."""
    page = Path(__file__).parents[3] / "docs" / "howto" / "airflow.md"
    [body] = re.findall(r"^```python dags/\w+\.py\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return str(body)


def queued_partitions(dag_id: str) -> list[str]:
    """The partition keys for which the scheduler will start a DAG."""
    from airflow.models.asset import AssetPartitionDagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetPartitionDagRun.partition_key).where(AssetPartitionDagRun.target_dag_id == dag_id)
        return sorted(session.scalars(query))


class Dags:
    """The folder of DAG files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, body: str) -> Path:
        """Write a file that defines DAGs."""
        path = self.folder / f"{name}.py"
        path.write_text(textwrap.dedent(body))
        return path

    def run(self, dag_id: str, path: Path, **options: Any) -> Finished:
        """Run a DAG from start to end: tasks, and triggers of deferred tasks, as `airflow dags test` does."""
        from airflow.dag_processing.dagbag import DagBag

        bag = DagBag(str(path))
        assert bag.import_errors == {}, bag.import_errors
        done = bag.dags[dag_id].test(**options)
        states = {task.task_id: str(task.state) for task in done.get_task_instances()}
        return Finished(dag_id, done.run_id, str(done.state), states)

    def remove(self) -> None:
        for path in self.folder.glob("*.py"):
            path.unlink()

"""New workspaces on either database: a SQLite file on disk, or a schema of a PostgreSQL server that the block owns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.workload import CONTRACT, QUERY, Workload
from penstock.app import Workspace
from penstock.db.engine import Database
from penstock.partition import new_ulid

BACKENDS = ("sqlite", "postgresql")
RESTATING = {QUERY: {**CONTRACT, "restate": {"days": 30}}}  # so that planning looks up verdicts, too


@dataclass(frozen=True, slots=True)
class Place:
    """A backend in which workspaces are created. Without a server, their state is a file beside them."""

    backend: str
    folder: Path
    server: str | None

    @contextmanager
    def workspace(self, workload: Workload) -> Iterator[Workspace]:
        """A workspace with a new state database."""
        name = f"w_{new_ulid().lower()}"
        state: dict[str, Any] = {"state": self.server, "schema": name} if self.server else {}
        workspace = workload.workspace(self.folder / name, queries=RESTATING, **state)
        try:
            yield workspace
        finally:
            workspace.context.database.close()


@contextmanager
def place(backend: str, folder: Path) -> Iterator[Place]:
    with _server() if backend == "postgresql" else nullcontext() as url:
        yield Place(backend, folder, url)


def settle(database: Database) -> None:
    """The work of autovacuum within a minute after many writes: the numbers must not depend on when it runs."""
    if database.dialect == "postgresql":
        database.transact(lambda connection: connection.exec_driver_sql("ANALYZE"))


def _server() -> AbstractContextManager[str]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the tests know how to start one, and to leave nothing
    from support.servers import postgres

    return postgres()

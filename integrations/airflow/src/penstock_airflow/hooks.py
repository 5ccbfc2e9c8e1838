"""The hook of the connection type `penstock`."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException

from penstock.client import Client
from penstock.errors import PenstockError
from penstock_airflow.connections import CONNECTION_TYPE, Server, server_of

DEFAULT_CONNECTION = "penstock_default"


class PenstockHook(BaseHook):
    """Returns clients of the HTTP API of Penstock.

    >>> with PenstockHook("penstock_default").get_conn() as client:
    ...     client.status()["counts"]
    """

    conn_name_attr = "penstock_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = CONNECTION_TYPE
    hook_name = "Penstock"

    def __init__(self, penstock_conn_id: str = DEFAULT_CONNECTION, **options: Any) -> None:
        super().__init__(**options)
        self.penstock_conn_id = penstock_conn_id
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """The server of the connection, which is read once."""
        if self._server is None:
            self._server = server_of(self.get_connection(self.penstock_conn_id))
        return self._server

    async def load(self) -> PenstockHook:
        """Read the connection without blocking the event loop, as a trigger must. Returns the hook."""
        self._server = server_of(await self.aget_connection(self.penstock_conn_id))
        return self

    def get_conn(self) -> Client:
        """A client, which can be used in several threads. The caller closes it."""
        return self.server.client()

    def test_connection(self) -> tuple[bool, str]:
        """Whether the server accepts the token, and the name and the role of the token."""
        try:
            with self.get_conn() as client:
                session = client.session()
        except PenstockError as error:
            return False, described(error, self.penstock_conn_id)
        except AirflowException as error:
            return False, str(error)
        return True, f"{self.server.url} accepts {session['name']}, role {session['role']}"


def described(error: PenstockError, conn_id: str) -> str:
    """An error of the server with its remedy, and the connection that it concerns."""
    return f"connection {conn_id}: {error} ({type(error).__name__}). {error.remedy}"

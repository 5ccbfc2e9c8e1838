"""The connection type `penstock`: its form, and the server that a connection names."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from penstock.client import Client

if TYPE_CHECKING:
    from airflow.sdk import Connection

DISTRIBUTION = "penstock-airflow"
CONNECTION_TYPE = "penstock"
DEFAULT_PORT = 8321
SCHEMES = ("https", "http")

# The fields of `extra` that the form of a connection shows.
EXTRA_FIELDS: dict[str, dict[str, Any]] = {
    "scheme": {
        "label": "Scheme",
        "schema": {"type": ["string", "null"], "enum": list(SCHEMES), "default": "https"},
        "description": "http sends the token unencrypted: use it on loopback only.",
    },
    "verify": {
        "label": "Verify the certificate",
        "schema": {"type": ["boolean", "null"], "default": True},
        "description": "Whether the certificate of the server must be valid.",
    },
    "ca_file": {
        "label": "CA file",
        "schema": {"type": ["string", "null"]},
        "description": "A PEM file with the authority of the certificate; without it, those of the system.",
    },
    "console_url": {
        "label": "Console address",
        "schema": {"type": ["string", "null"]},
        "description": "The address of the console in a browser, if it differs from that of the server.",
    },
}

FORM: dict[str, Any] = {
    "hidden-fields": ["login", "schema"],
    "relabeling": {"password": "Token"},
    "placeholders": {
        "host": "penstock.example.com",
        "port": str(DEFAULT_PORT),
        "password": "printed once by: penstock tokens create airflow --role operator",
    },
}


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the HTTP API, as a connection describes it. Its text has no token."""

    conn_id: str
    url: str
    token: str | None = field(repr=False)
    console_url: str
    verify: bool = True
    ca_file: str | None = None

    def client(self) -> Client:
        """A client of the server. The caller closes it."""
        verify: ssl.SSLContext | bool = self.verify
        if self.verify and self.ca_file:
            try:
                verify = ssl.create_default_context(cafile=self.ca_file)
            except OSError as error:
                raise AirflowException(f"connection {self.conn_id}: ca_file {self.ca_file}: {error}") from error
        return Client(self.url, self.token, verify=verify)

    def order_page(self, order_id: str) -> str:
        """The page of an order in the console, which also leads to its run."""
        return f"{self.console_url}/runs/orders/{order_id}"


def server_of(connection: Connection) -> Server:
    """The server that a connection names. Raises AirflowException if it names none."""
    name, extra = connection.conn_id, connection.extra_dejson
    host = (connection.host or "").rstrip("/")
    if not host:
        raise AirflowException(f"connection {name} has no host: enter the host of `penstock serve`")
    scheme = extra.get("scheme") or "https"
    if scheme not in SCHEMES:
        raise AirflowException(f"connection {name}: scheme is {scheme!r}, not https or http")
    if "://" in host:  # an address, as it is in the bar of a browser
        url = f"{host}:{connection.port}" if connection.port else host
    else:
        url = f"{scheme}://{host}:{connection.port or DEFAULT_PORT}"
    return Server(
        conn_id=name,
        url=url,
        token=connection.password or None,
        console_url=str(extra.get("console_url") or url).rstrip("/"),
        verify=_flag(name, "verify", extra.get("verify")),
        ca_file=extra.get("ca_file") or None,
    )


def _flag(conn_id: str, name: str, value: Any) -> bool:
    """A setting that is true unless it is false. The address of a connection has it as text."""
    if value is None or value == "":
        return True
    if str(value).lower() not in ("true", "false"):
        raise AirflowException(f"connection {conn_id}: {name} is {value!r}, not true or false")
    return str(value).lower() == "true"

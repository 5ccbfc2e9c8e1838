"""Checks whether an address accepts connections, within a short time and without sending a request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from urllib.request import getproxies, proxy_bypass

from penstock.errors import PenstockError, SourceUnavailable


def connect(host: str, port: int, seconds: float, scheme: str = "https") -> None:
    """Raise SourceUnavailable if the address does not accept a connection. Skips addresses behind a proxy."""
    if getproxies().get(scheme) and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError as error:
        raise SourceUnavailable(
            f"{host}:{port} does not respond ({error.strerror or error}): check the address, and the network of this"
            " machine"
        ) from error


def within(seconds: float, work: Callable[[], None], what: str) -> None:
    """Do the work in a thread. Raises its error, or SourceUnavailable if it takes longer; the thread is then left to
    end by itself."""
    raised: list[PenstockError] = []

    def attempt() -> None:
        try:
            work()
        except PenstockError as error:
            raised.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise SourceUnavailable(f"{what} does not respond within {seconds:g} s: check the address, and the network")
    if raised:
        raise raised[0]

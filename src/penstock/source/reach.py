"""Whether an address answers: one connection that is closed at once, within a short time. Nothing is asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from urllib.request import getproxies, proxy_bypass

from penstock.errors import PenstockError, SourceUnavailable


def connect(host: str, port: int, seconds: float, scheme: str = "https") -> None:
    """Raises SourceUnavailable when nobody answers there. An address behind a proxy is left to the proxy."""
    if getproxies().get(scheme) and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError as error:
        raise SourceUnavailable(
            f"{host}:{port} does not answer ({error.strerror or error}): check the address, and the network of this"
            " machine"
        ) from error


def within(seconds: float, work: Callable[[], None], what: str) -> None:
    """Do the work, or raise SourceUnavailable when it takes longer; it is left to end by itself then."""
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
        raise SourceUnavailable(f"{what} does not answer within {seconds:g} s: check the address, and the network")
    if raised:
        raise raised[0]

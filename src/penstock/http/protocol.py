"""uvicorn's protocol with time limits for clients that send or read too slowly.

A client that sends the head of a request byte by byte, or never reads its responses, would hold its connection, the
memory of the response and a place among the connections of the server for ever: `transport.close()` waits until all
bytes are sent. So a connection whose unsent bytes do not become fewer is aborted.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection."""

    head_seconds: float = 10.0  # to receive the head of a request
    send_seconds: float = 30.0  # in which a client has to read `send_bytes`
    send_bytes: int = 16 * 1024
    stop_seconds: float = 3.0  # in place of `send_seconds` while the server stops


def timed_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """The class of the protocol of each connection."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _send_timer: asyncio.TimerHandle | None = None
        _send_seconds = limits.send_seconds
        _pending: int | None = None  # bytes that the client has not received, at the time `_since`
        _since = 0.0
        _layers: _Layers

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._layers = _Layers.of(transport)
            self._expect_head()
            self._expect_progress()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            if self._head_timer is None and (before is None or before.response_complete):
                self._expect_head()
            super().data_received(data)
            if self.cycle is not before:
                self._stop_head_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_head_timer()
            if self._send_timer is not None:
                self._send_timer.cancel()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            super().shutdown()
            if self._send_timer is not None:
                self._send_timer.cancel()
            self._send_seconds = min(limits.send_seconds, limits.stop_seconds)
            self._pending = None
            self._abort_without_progress()

        def _expect_head(self) -> None:
            self._head_timer = self.loop.call_later(limits.head_seconds, self._close_late)

        def _stop_head_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _close_late(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                self.transport.close()

        def _expect_progress(self) -> None:
            self._send_timer = self.loop.call_later(self._send_seconds / 4, self._abort_without_progress)

        def _abort_without_progress(self) -> None:
            """Abort the connection if the client has read too little since the last time that it read enough."""
            now, pending = self.loop.time(), self._layers.pending_bytes()
            if self._pending is None or pending is None or not 0 <= self._pending - pending < limits.send_bytes:
                self._pending, self._since = pending, now
            elif now - self._since >= self._send_seconds:
                self._layers.socket.abort()  # connection_lost follows
                return
            self._expect_progress()

    return TimedProtocol


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of a connection that hold unsent bytes. They are kept from its beginning: a transport with TLS that is
    closed twice forgets them, and then neither tells its bytes nor can be aborted."""

    socket: asyncio.Transport  # of the socket; with TLS it holds encrypted bytes
    encryption: Any  # asyncio's SSLProtocol; None without TLS

    @classmethod
    def of(cls, transport: asyncio.Transport) -> Self:
        encryption = getattr(transport, "_ssl_protocol", None)
        return cls(transport if encryption is None else encryption._transport, encryption)

    def pending_bytes(self) -> int | None:
        """The bytes that the client has not received yet; None if the kernel has taken all, so that the connection can
        be closed at any time."""
        buffered = self.socket.get_write_buffer_size()
        if self.encryption is not None:
            buffered += self.encryption._get_write_buffer_size()
        return buffered + self._kernel_bytes() if buffered else None

    def _kernel_bytes(self) -> int:
        """The sent bytes that the client has not acknowledged. The kernel takes more only after it could send a large
        part of them, so the buffer of the transport alone would not show that a slow client reads."""
        try:
            found = fcntl.ioctl(self.socket.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        except (OSError, ValueError):  # the system does not tell, or the socket is closed
            return 0
        [count] = struct.unpack("i", found)
        return int(count)

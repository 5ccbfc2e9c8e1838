"""A notification as its channel sends it, and the errors of sending."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from penstock.errors import TransientError
from penstock.state.alert_records import NoticeKind


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification with its stable id. `origin` names the workspace: `tenant/workspace`."""

    delivery_id: str
    kind: NoticeKind
    origin: str
    body: Mapping[str, Any]

    @property
    def title(self) -> str:
        """One line for people."""
        body = self.body
        what = "recovered" if self.kind is NoticeKind.RECOVERED else "firing"
        again = f" (notice {body['notice']})" if self.kind is NoticeKind.REPEATED else ""
        return f"[{self.origin}] {body['rule']} {what}{again}: {body['subject']}"

    @property
    def text(self) -> str:
        """The facts for people, one per line."""
        body = self.body
        lines = [str(body["message"]), f"since {body['since']}"]
        lines += [f"recovered {body['recovered_at']}"] if body["recovered_at"] else []
        lines += [f"example: {body['example']}"] if body["example"] else []
        lines += [str(body["link"])] if body["link"] else []
        return "\n".join([*lines, f"alert {body['alert_id']}"])


class Channel(Protocol):
    """Sends notifications to one receiver."""

    def send(self, notification: Notification, now: datetime) -> None:
        """Return when the receiver has accepted the notification. Raises DeliveryFailed."""
        ...


class DeliveryFailed(TransientError):
    """The channel did not accept a notification. `is_final`: it never will. `is_down`: it accepts none at present."""

    remedy = "Check the receiver and the address, then `penstock alerts test CHANNEL`. Deliveries are repeated."

    def __init__(
        self, message: str, *, is_final: bool = False, is_down: bool = True, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message)
        self.is_final = is_final
        self.is_down = is_down
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {
            "is_final": self.is_final, "is_down": self.is_down, "retry_after": self.retry_after
        }  # fmt: skip

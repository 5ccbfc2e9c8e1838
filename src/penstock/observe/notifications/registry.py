"""The kinds of channels by name. A target is one receiver of a channel: each gets deliveries of its own."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.alerts import ChannelSettings
from penstock.observe.notifications.message import Channel


def target_names(name: str, settings: ChannelSettings) -> tuple[str, ...]:
    """The targets of a channel: `ops`, or `ops[0]`, `ops[1]` if it has several addresses."""
    addresses = settings.apprise or ()
    return (name,) if len(addresses) <= 1 else tuple(f"{name}[{number}]" for number in range(len(addresses)))


def open_targets(channels: Mapping[str, ChannelSettings]) -> dict[str, Channel]:
    """The channels by the names of their targets. Raises ConfigError if a package is missing or an address is not
    valid."""
    return {
        target: channel
        for name, settings in channels.items()
        for target, channel in zip(target_names(name, settings), _open(settings), strict=True)
    }


def _open(settings: ChannelSettings) -> list[Channel]:
    if settings.kind == "webhook":
        from penstock.observe.notifications.webhook import Webhook

        return [Webhook(settings)]
    from penstock.observe.notifications.apprise_services import AppriseService

    return [AppriseService(url) for url in settings.apprise or ()]

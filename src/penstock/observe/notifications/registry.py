"""The kinds of channels by name. A target is one receiver of a channel: each gets deliveries of its own."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from penstock.config.alerts import ChannelSettings
from penstock.observe.notifications.message import Channel


def target_names(name: str, settings: ChannelSettings) -> tuple[str, ...]:
    """The targets of a channel: `ops` of a webhook, and `ops[1f0c2a]` for each address of Apprise. A name follows its
    address, so a recovery finds the receiver of the firing after addresses were added or reordered."""
    if settings.kind == "webhook":
        return (name,)
    return tuple(f"{name}[{sha256(address.encode()).hexdigest()[:6]}]" for address in settings.apprise or ())


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

"""Channels: CloudEvents and signatures of webhooks, services of Apprise, missing packages."""

from __future__ import annotations

import json
import pickle
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.config.alerts import ChannelSettings
from penstock.errors import ConfigError
from penstock.observe.notifications.message import Channel, DeliveryFailed, Notification
from penstock.observe.notifications.registry import open_targets, target_names
from penstock.observe.notifications.webhook import cloud_event, signature
from penstock.state.alert_records import NoticeKind
from support.hooks import SECRET, receiver

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "alerts.md"
NOW = datetime(2024, 6, 11, 12, tzinfo=UTC)


def notification(kind: NoticeKind = NoticeKind.FIRED, **changes: Any) -> Notification:
    body = {
        "alert_id": "01A", "rule": "late", "condition": "late", "subject": "demo.daily", "state": "firing", "notice": 1,
        "count": 1, "message": "demo.daily of 2024-06-10 is late", "example": None, "link": "https://p.example.com/",
        "since": "2024-06-11T07:00:00.000000Z", "fired_at": "2024-06-11T07:00:00.000000Z", "recovered_at": None,
        "at": "2024-06-11T07:00:00.000000Z",
    }  # fmt: skip
    return Notification("01D", kind, "acme/ads", body | changes)


def webhook(url: str, **changes: Any) -> Channel:
    [channel] = open_targets({"ops": ChannelSettings(webhook=url, **changes)}).values()
    return channel


def test_a_notification_is_a_cloud_event_with_the_fields_of_the_page() -> None:
    event = cloud_event(notification())
    [documented] = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)
    shown = json.loads(documented)
    assert (set(event), set(event["data"])) == (set(shown), set(shown["data"]))
    assert (event["id"], event["type"], event["subject"]) == ("01D", "dev.penstock.alert.fired", "late/demo.daily")
    assert cloud_event(notification(NoticeKind.REPEATED))["type"] == "dev.penstock.alert.fired"
    assert cloud_event(notification(NoticeKind.RECOVERED))["type"] == "dev.penstock.alert.recovered"


def test_the_documented_check_accepts_genuine_requests_only() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(snippet, names)  # noqa: S102 - our own page
    is_genuine, now = names["is_genuine"], int(time.time())
    header = signature(SECRET, now, b'{"id": "1"}')
    assert is_genuine(header, b'{"id": "1"}', SECRET)
    assert not is_genuine(header, b'{"id": "2"}', SECRET)
    assert not is_genuine(header, b'{"id": "1"}', "another secret")
    assert not is_genuine(header.replace(f"t={now}", f"t={now - 1}"), b'{"id": "1"}', SECRET)
    assert not is_genuine(signature(SECRET, now - 301, b"{}"), b"{}", SECRET)


def test_a_webhook_is_signed_only_with_a_secret() -> None:
    with receiver() as hook:
        webhook(hook.url, secret=SECRET).send(notification(), NOW)
        webhook(hook.url).send(notification(), NOW)
        assert [event["id"] for event in hook.events] == ["01D", "01D"]
        with pytest.raises(DeliveryFailed, match="418"):
            webhook(hook.url, secret="another").send(notification(), NOW)


@pytest.mark.parametrize(
    ("status", "final", "down"),
    [(410, True, False), (400, False, False), (404, False, False), (302, False, False), (429, False, True)]
    + [(status, False, True) for status in (408, 425, 500, 503)],
)
def test_a_response_decides_about_the_next_attempt(status: int, final: bool, down: bool) -> None:
    with receiver() as hook:
        hook.status, hook.headers = status, {"Retry-After": "99999", "Location": hook.url}
        with pytest.raises(DeliveryFailed) as failed:
            webhook(hook.url).send(notification(), NOW)
        assert hook.requests == 1
    assert (failed.value.is_final, failed.value.is_down) == (final, down)
    assert failed.value.retry_after in (None, timedelta(hours=1))
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.is_final, again.is_down) == (str(failed.value), final, down)


def test_no_error_shows_an_address_or_a_secret() -> None:
    with receiver() as hook:
        port = hook.url.split(":")[2].partition("/")[0]
    texts = []
    for channel in (
        webhook(f"http://127.0.0.1:{port}/key-of-the-hook", secret="secret-of-the-hook"),
        webhook("http://[::bad/key-of-the-hook"),
        *open_targets({"t": ChannelSettings(apprise=(f"json://127.0.0.1:{port}/key-of-the-hook",))}).values(),
    ):
        with pytest.raises(DeliveryFailed) as failed:
            channel.send(notification(), NOW)
        assert failed.value.is_down
        texts.append(str(failed.value))
    with pytest.raises(ConfigError) as refused:
        open_targets({"t": ChannelSettings(apprise=("nothing://key-of-the-hook",))})
    assert not any("of-the-hook" in text for text in [*texts, str(refused.value)])


def test_apprise_sends_title_and_text_to_each_address() -> None:
    with receiver() as hook:
        address = hook.url.replace("http://", "json://")
        settings = ChannelSettings(apprise=(f"{address}/a", f"{address}/b"))
        targets = open_targets({"team": settings})
        first, second = target_names("team", settings)
        assert tuple(targets) == (first, second)
        reordered = ChannelSettings(apprise=(f"{address}/c", f"{address}/b", f"{address}/a"))
        assert target_names("team", reordered)[1:] == (second, first), "a name follows its address"
        assert target_names("team", ChannelSettings(apprise=(f"{address}/a",))) == (first,)
        for channel in targets.values():
            channel.send(notification(NoticeKind.RECOVERED, recovered_at="2024-06-11T09:00:00.000000Z"), NOW)
        hook.status = 500
        with pytest.raises(DeliveryFailed, match="json did not accept"):
            targets[first].send(notification(), NOW)
    message, _ = hook.events
    assert message["title"] == "[acme/ads] late recovered: demo.daily"
    assert message["message"].splitlines() == [
        "demo.daily of 2024-06-10 is late",
        "since 2024-06-11T07:00:00.000000Z",
        "recovered 2024-06-11T09:00:00.000000Z",
        "https://p.example.com/",
        "alert 01A",
    ]
    assert message["type"] == "success"


@pytest.mark.parametrize(
    ("package", "settings"),
    [
        ("httpx", ChannelSettings(webhook="https://hooks.example.com/")),
        ("apprise", ChannelSettings(apprise=("json://127.0.0.1",))),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, settings: ChannelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=re.escape(f'needs the package {package}: pip install "penstock[alerts]"')):
        open_targets({"ops": settings})

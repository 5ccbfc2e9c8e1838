"""A workspace whose file has secrets of an identity provider, a source and a webhook."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from penstock.app import Workspace, load_workspace

SECRETS = {
    "oidc": "oidc-client-secret-71f0",
    "source": "source-token-58c2",
    "login": "source-login-pw-a90d",
    "webhook": "webhook-signing-key-3e44",
    "webhook address": "hooks-path-0b7a",
}
NAMES = {"web"}  # of the source
CHANNEL = "opshook"


@contextmanager
def secretive(folder: Path) -> Iterator[Workspace]:
    """The workspace in this folder, opened with secrets in its file. The file is as before afterwards."""
    file = folder / "penstock.yaml"
    before = file.read_text()
    body = yaml.safe_load(before)
    body["sources"]["web"] = {
        "kind": "http",
        "url": f"http://kim:{SECRETS['login']}@127.0.0.1:9/{{date}}",
        "headers": {"Authorization": f"Bearer {SECRETS['source']}"},
    }
    body["queries"]["clicks"] = {
        "source": "web",
        "start_date": "2024-06-09",
        "fields": [{"name": "a", "type": "long"}],
    }
    body["console"] = {
        "oidc": {
            "issuer": "http://127.0.0.1:9",  # nobody listens there
            "client_id": "penstock",
            "client_secret": SECRETS["oidc"],
            "roles": {"viewer": ["*"]},
        }
    }
    webhook = {"webhook": f"http://127.0.0.1:9/{SECRETS['webhook address']}", "secret": SECRETS["webhook"]}
    body["alerts"] = {
        "channels": {CHANNEL: webhook},
        "rules": [{"rule": "breaker_open", "channels": [CHANNEL]}],
    }
    file.write_text(yaml.safe_dump(body))
    try:
        opened = load_workspace(folder)
        yield opened
        opened.close()
    finally:
        file.write_text(before)


def facts_of(records: Iterable[logging.LogRecord]) -> list[str]:
    """The facts of log lines, which the text of a record does not have."""
    return [repr(record.__dict__.get("facts")) for record in records]

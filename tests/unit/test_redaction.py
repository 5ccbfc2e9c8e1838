"""No log line and no error shows a secret, whatever its source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from penstock.config.file import read_workspace_file
from penstock.config.secret_values import remember_secrets
from penstock.redaction import Redactor
from support.cli import in_process
from support.workspaces import write_workspace

SECRETS = {
    "SOURCE_TOKEN": "tok/en+of=the source?&",
    "SOURCE_COOKIE": "session-0123456789",
    "LOGIN": "Basic dXNlcjpwYXNz",
    "QUERY_KEY": "AIzaSyA-query-key",
    "OIDC_CLIENT_SECRET": "oidc\"secret'",
    "MARQUEZ_KEY": "marquez-key-1",
    "PIN_PASSWORD": "s3cr",
    "AWS_SECRET_ACCESS_KEY": "aws/secret/access",
    "AWS_SESSION_TOKEN": "aws-session-token",
    "PGPASSWORD": "pg-password",
    "GOOGLE_ADS_REFRESH_TOKEN": "1//google-refresh",
    "DATABASE_PASSWORD": "d@tabase:pw",
    "HOOK_SECRET": "hook-signing-key",
    "HOOK_URL": "https://hooks.example.com/services/T0/B0/abcdef",
    "CHAT_URL": "slack://tokenA/tokenB/tokenC",
}
LITERALS = ("literal-api-key", "literal-login-pw")
API_TOKEN = f"penstock_{'0123456789abcdef'}_{'x' * 43}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace that uses every secret, on a database that is only a file."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    made = write_workspace(tmp_path)
    body = yaml.safe_load((made / "penstock.yaml").read_text())
    body["sources"]["web"] = {
        "kind": "http",
        "url": "https://kim:literal-login-pw@example.com/{date}",
        "headers": {
            "Authorization": "Bearer ${SOURCE_TOKEN}",
            "Cookie": "${SOURCE_COOKIE}",
            "X-Login": "${LOGIN}",
            "X-Api-Key": "literal-api-key",
            "X-Pin": "${PIN_PASSWORD}",
        },
    }
    body["queries"]["clicks"] = {
        "source": "web", "start_date": "2024-06-09", "fields": [{"name": "a", "type": "long"}],
        "options": {"params": {"key": "${QUERY_KEY}"}},
    }  # fmt: skip
    body["console"] = {
        "oidc": {
            "issuer": "https://login.example.com", "client_id": "penstock",
            "client_secret": "${OIDC_CLIENT_SECRET}", "roles": {"viewer": ["*"]},
        }
    }  # fmt: skip
    body["lineage"] = {"url": "https://marquez.example.com", "api_key": "${MARQUEZ_KEY}"}
    body["alerts"] = {
        "channels": {
            "ops": {"webhook": "${HOOK_URL}", "secret": "${HOOK_SECRET}"}, "chat": {"apprise": ["${CHAT_URL}"]},
        }
    }  # fmt: skip
    (made / "penstock.yaml").write_text(yaml.safe_dump(body))
    assert in_process("db", "migrate", workspace=made).code == 0
    return made


def leaks(text: str) -> list[str]:
    known = [*SECRETS.values(), *LITERALS, API_TOKEN]
    forms = {form for value in known for form in (value, quote(value, safe=""), json.dumps(value)[1:-1])}
    return sorted(form for form in forms if form in text)


@pytest.mark.parametrize("log_format", ["json", "plain"])
def test_a_command_that_fails_shows_no_secret_of_the_workspace(folder: Path, log_format: str) -> None:
    for value in [*SECRETS.values(), *LITERALS, API_TOKEN]:
        for shown in {value, quote(value, safe=""), f"https://kim:{value}@example.com/"}:
            ended = in_process("status", "--query", shown, "--log-format", log_format, workspace=folder)
            assert ended.code in (1, 2)
            assert "campaign_daily" in ended.stderr, "the error lists the known queries"
            assert leaks(ended.stderr) == [], ended.stderr


def test_a_secret_of_the_environment_is_replaced_by_its_name(folder: Path) -> None:
    ended = in_process("status", "--query", SECRETS["SOURCE_COOKIE"], workspace=folder)
    assert "${SOURCE_COOKIE}" in ended.stderr


def test_a_traceback_of_debug_shows_no_secret(folder: Path) -> None:
    line = [sys.executable, "-m", "penstock", "status", "--debug", "--workspace", str(folder), "--query"]
    value = SECRETS["SOURCE_TOKEN"]
    done = subprocess.run([*line, value], capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ))
    assert "Traceback" in done.stderr
    assert leaks(done.stderr) == []


def test_a_password_inside_a_url_of_the_state_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = SECRETS["DATABASE_PASSWORD"]
    monkeypatch.setenv("STATE_URL", f"postgresql+psycopg://kim:{quote(password, safe='')}@127.0.0.1:1/db")
    folder = write_workspace(tmp_path, state="${STATE_URL}")
    ended = in_process("status", workspace=folder)
    assert ended.code == 75
    assert leaks(ended.stderr) == []
    assert "127.0.0.1" in ended.stderr, "only the password is a secret"
    for shown in (os.environ["STATE_URL"], password, quote(password, safe="")):
        refused = in_process("contract", "show", shown, workspace=folder)
        assert refused.code != 0
        assert leaks(refused.stderr) == [], refused.stderr


def test_the_address_of_a_channel_is_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hook = "https://hooks.example.com/services/T0/B0/abcdef"
    monkeypatch.setenv("HOOK", f"{hook}-of-env")
    (tmp_path / "penstock.yaml").write_text(f"alerts: {{channels: [{{url: {hook}}}, {{url: '${{HOOK}}'}}]}}\n")
    secrets = Redactor()
    remember_secrets(read_workspace_file(tmp_path / "penstock.yaml", os.environ), secrets)
    assert secrets.hide(f"no answer of {hook} and {hook}-of-env") == "no answer of *** and ${HOOK}"


def test_short_values_dates_and_plain_addresses_stay_readable() -> None:
    secrets = Redactor()
    secrets.remember("2024-06-01", "${START}", is_named=False)
    secrets.remember("1000000001", "${ACCOUNT}", is_named=False)
    secrets.remember("demo", "${NAME}", is_named=False)
    secrets.remember("https://api.example.com/v1", "${URL}", is_named=False)
    secrets.remember("abc", "${PASSWORD}")
    secrets.remember("false", "${NO_TOKEN}")
    text = "demo/1000000001/q/2024-06-01 abc false https://api.example.com/v1"
    assert secrets.hide(text) == text


def test_a_short_password_is_hidden_as_a_whole_word() -> None:
    secrets = Redactor()
    secrets.remember("test", "${PASSWORD}")
    assert secrets.hide("the latest test of testing (test)") == "the latest ${PASSWORD} of testing (${PASSWORD})"


def test_the_longest_secret_is_replaced_first() -> None:
    secrets = Redactor()
    for value in ("password", "password-and-more"):
        secrets.remember(value)
    assert secrets.hide("password-and-more, password") == "***, ***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://kim:pw@host/db", "postgresql+psycopg://kim:***@host/db"),
        ("host=h password=pw user=kim", "host=h password=*** user=kim"),
        ("https://x/?access_token=abc&page=2", "https://x/?access_token=***&page=2"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        (f"token {API_TOKEN}, unknown", "token penstock_***, unknown"),
        ("bearer of news, s3://bucket/prefix", "bearer of news, s3://bucket/prefix"),
    ],
)  # fmt: skip
def test_forms_of_secrets_are_hidden_although_they_are_unknown(text: str, shown: str) -> None:
    assert Redactor().hide(text) == shown

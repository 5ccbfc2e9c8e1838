"""The HTTP API through real processes: `penstock serve`, `penstock control serve` and `penstock.client`."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from penstock import AccessDenied, ActRefused, DatabaseUnavailable, NotAuthenticated, UsageError
from penstock.app import load_workspace
from penstock.client import Client, ServerUnavailable
from penstock.partition import new_ulid
from support.api_process import ServerProcess, api_server, started
from support.cli import answer, penstock
from support.servers import postgres_to_restart
from support.workspaces import customer_id, write_workspace

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
WRONG = {"fault": "wrong_type", "customer": customer_id(3), "date": YESTERDAY.isoformat()}


def migrated(folder: Path, **changes: object) -> Path:
    """Three customers with yesterday's partition each; the third one is rejected. Small runs need no Spark."""
    query = {"start_date": YESTERDAY.isoformat()}
    settings = {"customers": 3, "faults": [WRONG], "query": query, "driver_partitions": 32, **changes}
    made = write_workspace(folder, **settings)  # type: ignore[arg-type]
    assert penstock("db", "migrate", workspace=made).returncode == 0
    return made


def token(workspace: Path, role: str, name: str | None = None) -> str:
    text: str = answer("tokens", "create", name or f"{role}-1", "--role", role, workspace=workspace)["token"]
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server of a workspace with one token of each role."""
    with api_server(folder) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(folder: Path, server: ServerProcess) -> dict[str, str]:
    return {role: token(folder, role) for role in ("viewer", "operator", "admin")}


@pytest.fixture
def operator(server: ServerProcess, tokens: dict[str, str]) -> Iterator[Client]:
    with Client(server.url, tokens["operator"]) as client:
        yield client


def key(number: int) -> str:
    return f"demo/{customer_id(number)}/campaign_daily/{YESTERDAY}"


def test_an_operator_orders_a_run_and_acts_on_its_result(
    folder: Path, server: ServerProcess, operator: Client, tokens: dict[str, str]
) -> None:
    order = operator.order_run(reason="first load", idempotency_key="first")
    assert operator.order_run(reason="first load", idempotency_key="first")["order_id"] == order["order_id"]
    assert "no control loop was ever started" in order["warning"]
    with started(folder, "control", "serve") as loop:
        done = operator.wait_for_order(order["order_id"], patience=120, every=0.2)
        assert (done["state"], done["warning"], done["error"]) == ("succeeded", None, None), loop.log
        assert loop.stop() == 0
    assert (done["result"]["counts"]["accepted"], done["result"]["counts"]["rejected"]) == (2, 1)
    run = operator.run(done["run_id"])
    assert run["state"] == "FAILED"  # a partition was rejected
    assert [(part["stage"], part["state"], part["tasks"]) for part in run["stages"]] == [
        ("extract", "SUCCEEDED", 3),
        ("load", "SKIPPED", 1),
        ("load", "SUCCEEDED", 2),
        ("validate", "FAILED", 1),
        ("validate", "SUCCEEDED", 2),
    ]
    assert [run["run_id"] for run in operator.runs()][-1] == done["run_id"]
    assert operator.status()["counts"] == {"materialized": 2, "never_materialized": 1}
    assert len(operator.rows("demo.campaign_daily", limit=1000)) == 10
    grid = operator.grid("campaign_daily")
    assert [grid.code(row, 0) for row in range(grid.rows)] == [2, 2, 6]

    assert operator.partition(key(3))["headline"] == "no run of this partition has ever been accepted"
    assert [attempt["outcome"] for attempt in operator.attempts(key(3))] == ["FAILED"]
    plan = operator.preview("retry", {"status": "failed"}, reason="source fixed")
    assert (plan["total"], [item["key"] for item in plan["items"]]) == (1, [key(3)])
    assert operator.apply(plan["token"])["result"]["affected"] == 1
    assert operator.apply(plan["token"])["result"]["affected"] == 1  # the first result
    assert [item["status"] for item in operator.partitions(key=[key(3)])] == ["pending"]

    with pytest.raises(AccessDenied, match="demote needs the role admin"):
        operator.preview("demote", {"keys": [key(1)]}, reason="wrong currency")
    with Client(server.url, tokens["admin"]) as admin:
        plan = admin.preview("demote", {"keys": [key(1)]}, reason="wrong currency")
        assert admin.apply(plan["token"])["result"]["affected"] == 1
    assert operator.partition(key(1))["display_status"] == "unavailable"
    acts = [(entry["actor"], entry["command"]) for entry in operator.audit()]
    assert ("operator-1", "orders create") in acts
    assert ("operator-1", "state retry") in acts
    assert ("admin-1", "state demote") in acts
    assert [event["type"] for event in operator.events()][-1] == "AuthorityChanged"


def test_errors_have_the_classes_and_texts_of_the_command_line(folder: Path, operator: Client) -> None:
    with pytest.raises(UsageError, match="unknown customer 9") as refused:
        list(operator.partitions(customer="9"))
    shown = penstock("state", "inspect", "--customer", "9", workspace=folder)
    assert shown.stderr.strip() == f"penstock: {refused.value}"
    with pytest.raises(ActRefused, match="a token operator-1 exists"):
        load_workspace(folder).tokens.create("operator-1", "viewer")
    with pytest.raises(UsageError, match="there is no order"):
        operator.show_order(new_ulid())
    with pytest.raises(AccessDenied, match="needs the role admin"):
        operator.tokens()


def test_wrong_tokens_and_absent_servers_raise_their_own_errors(server: ServerProcess, tokens: dict[str, str]) -> None:
    for wrong in (None, "nonsense", tokens["viewer"][:-1] + "!"):
        with Client(server.url, wrong) as client, pytest.raises(NotAuthenticated):
            client.status()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with Client(f"http://127.0.0.1:{taken.getsockname()[1]}") as nobody:
            assert not nobody.is_ready()
            with pytest.raises(ServerUnavailable, match="does not respond"):
                nobody.status()


def test_an_admin_manages_tokens_over_http(server: ServerProcess, tokens: dict[str, str]) -> None:
    with Client(server.url, tokens["admin"]) as admin:
        text = admin.create_token("brief", "viewer")
        with Client(server.url, text) as brief:
            assert brief.session() == {"name": "brief", "role": "viewer", "csrf_token": None, "expires_at": None}
            assert admin.revoke_token("brief")
            with pytest.raises(NotAuthenticated):
                brief.session()
        assert not admin.revoke_token("brief")
        assert {found["name"] for found in admin.tokens()} >= {"brief", "admin-1"}


def test_the_log_has_a_line_for_each_request_and_no_secret(server: ServerProcess, tokens: dict[str, str]) -> None:
    with Client(server.url, tokens["viewer"]) as viewer:
        viewer.sources()
    deadline = time.monotonic() + 30  # a line is written after its response was sent
    while not (lines := [line for line in server.log.splitlines() if '"path":"/api/v1/sources"' in line]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    line = lines[-1]
    assert '"actor":"viewer-1"' in line
    assert re.search(r'"request_id":"[0-9a-f]{16}"', line)
    assert [text for text in tokens.values() if text in server.log or text.split("_", 2)[2] in server.log] == []


def test_slow_and_oversized_requests_are_cut_off(server: ServerProcess, tokens: dict[str, str]) -> None:
    head = b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 60) as large:
        large.sendall(head + b"X-Filler: " + b"x" * 100_000)
        assert large.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", server.port), 60) as long_path:
        long_path.sendall(b"GET /" + b"x" * 100_000)
        assert long_path.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", server.port), 60) as silent:
        silent.sendall(head)  # and never the rest
        assert silent.recv(100) == b""  # the server closes the connection
    authorization = f"Authorization: Bearer {tokens['operator']}\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), 60) as slow:
        slow.sendall(
            b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + authorization
            + b"Content-Length: 100\r\n\r\n{"
        )
        assert slow.recv(100).startswith(b"HTTP/1.1 408")
    response = httpx.post(f"{server.url}/api/v1/runs", content=b" " * 2_000_000, headers={"Content-Type": "text/plain"})
    assert response.status_code == 413
    with Client(server.url, tokens["viewer"]) as viewer:
        assert viewer.is_ready()


def test_many_clients_at_once_get_the_same_documents(server: ServerProcess, tokens: dict[str, str]) -> None:
    def ask(_: int) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...], bytes]:
        with Client(server.url, tokens["viewer"]) as viewer:
            grid = viewer.grid("campaign_daily")
            return (
                tuple(sorted(viewer.status()["counts"].items())),
                tuple(item["key"] for item in viewer.partitions()),
                grid.codes,
            )

    with ThreadPoolExecutor(12) as pool:
        [(counts, keys, codes)] = set(pool.map(ask, range(36)))
    assert sum(count for _, count in counts) == len(codes) == 3
    assert len(keys) > 0


def test_requests_in_progress_are_finished_when_the_server_stops(tmp_path: Path) -> None:
    folder = migrated(tmp_path)
    text = token(folder, "operator")
    with api_server(folder) as server, socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        body = b'{"reason": "last words"}'
        connection.sendall(
            b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + f"Authorization: Bearer {text}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        _until_received(server)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 202")
        stopping.join()
        assert server.process.returncode == 0
    assert [order["reason"] for order in _orders(folder)] == ["last words"]
    for number in (signal.SIGINT, signal.SIGTERM):
        with api_server(folder) as server:
            assert server.stop(number) == 0
            assert "Traceback" not in server.log


def _orders(folder: Path) -> list[dict[str, object]]:
    with api_server(folder) as server, Client(server.url, token(folder, "viewer", f"v{time.monotonic_ns()}")) as client:
        return list(client.orders())


def _until_received(server: ServerProcess) -> None:
    """Wait until the server has read what was sent: nothing is left in the buffer of its connection."""
    deadline = time.monotonic() + 30
    port = f":{server.port:04X}"
    while time.monotonic() < deadline:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        waiting = [line for line in lines if line[1].endswith(port) and line[3] == "01"]
        if waiting and all(line[4].endswith(":00000000") for line in waiting):
            return
        time.sleep(0.05)


def test_two_instances_share_tokens_sessions_keys_and_plans(tmp_path: Path) -> None:
    folder = migrated(tmp_path)
    text = token(folder, "operator")
    with api_server(folder) as one, api_server(folder) as two:
        with Client(one.url, text) as first, Client(two.url, text) as second:
            plan = first.preview("pause", {"customers": [customer_id(1)]})
            assert second.apply(plan["token"])["result"]["affected"] == 1
            assert first.plan(plan["token"]) == second.plan(plan["token"])
            order = first.order_run(idempotency_key="k")
            assert second.order_run(idempotency_key="k") == order
            for path in ("/api/v1/status", "/api/v1/grid?query=campaign_daily", "/api/v1/partitions?status=pending"):
                tags = {
                    httpx.get(server.url + path, headers={"Authorization": f"Bearer {text}"}).headers["etag"]
                    for server in (one, two)
                }
                assert len(tags) == 1, path
        login = httpx.post(f"{one.url}/login", json={"token": text})
        cookie = {"Cookie": f"penstock_session={login.cookies['penstock_session']}"}
        assert httpx.get(f"{two.url}/api/v1/session", headers=cookie).json()["name"] == "operator-1"
        penstock("tokens", "revoke", "operator-1", workspace=folder)
        for server in (one, two):
            assert httpx.get(f"{server.url}/api/v1/session", headers=cookie).status_code == 401


def test_a_server_with_a_certificate_speaks_tls(tmp_path: Path) -> None:
    folder = migrated(tmp_path / "ws")
    cert, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", private, "-out", cert, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    text = token(folder, "viewer")
    context = ssl.create_default_context(cafile=str(cert))
    with api_server(folder, "--certfile", str(cert), "--keyfile", str(private)) as server:
        assert server.url.startswith("https://")
        with Client(server.url, text, verify=context) as client:
            assert client.session()["name"] == "viewer-1"
        login = httpx.post(f"{server.url}/login", json={"token": text}, verify=context)
        assert "; Secure" in login.headers["set-cookie"]
        with Client(server.url.replace("https", "http"), text) as plain, pytest.raises(ServerUnavailable):
            plain.status()


def test_addresses_options_and_missing_databases_are_refused_with_a_message(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path)
    assert "db migrate" in penstock("serve", workspace=folder).stderr
    penstock("db", "migrate", workspace=folder)
    refused = penstock("serve", "--host", "0.0.0.0", "--port", "0", workspace=folder)
    assert (refused.returncode, "tokens create NAME --role admin" in refused.stderr) == (2, True)
    assert penstock("serve", "--certfile", "x.pem", workspace=folder).returncode == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = penstock("serve", "--port", str(taken.getsockname()[1]), workspace=folder)
        assert (busy.returncode, "cannot listen on" in busy.stderr) == (1, True)


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path / "ws")
    penstock("db", "migrate", workspace=folder)
    for package in ("starlette", "argon2"):
        (tmp_path / package).mkdir()
        (tmp_path / package / f"{package}.py").write_text(
            f"raise ModuleNotFoundError('no {package}', name='{package}')"
        )
        environment = {"PYTHONPATH": f"{tmp_path / package}:{_python_path()}"}
        command = (
            ("serve", "--port", "0") if package == "starlette" else ("tokens", "create", "kim", "--role", "viewer")
        )
        done = penstock(*command, workspace=folder, **environment)
        assert (done.returncode, "penstock[console]" in done.stderr) == (1, True), done.stderr


def _python_path() -> str:
    return os.environ.get("PYTHONPATH", "")


def test_the_server_imports_no_spark_and_starts_no_jvm(tmp_path: Path) -> None:
    folder = migrated(tmp_path)
    with api_server(folder, PYTHONPROFILEIMPORTTIME="1") as server:
        with Client(server.url) as client:
            for call in (client.status, client.sources, client.tables, client.session, client.tokens, client.openapi):
                call()
            assert client.rows("demo.campaign_daily") == []
            list(client.partitions(status="pending"))
            client.partition(key(1))
            client.grid("campaign_daily")
            client.apply(client.preview("pause", {"customers": [customer_id(1)]})["token"])
            client.order_run()
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert children == []
        assert server.stop() == 0
    imported = set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", server.log, re.M))
    assert {name.partition(".")[0] for name in imported} & {"pyspark", "py4j", "google"} == set()
    assert "starlette" in imported


@pytest.mark.damages_workspace("its database ends with the test")
def test_a_server_survives_a_restart_of_its_database(tmp_path: Path) -> None:
    with postgres_to_restart() as (url, restart):
        folder = migrated(tmp_path, state=url, schema="served")
        text = token(folder, "operator")
        with api_server(folder) as server, Client(server.url, text) as client:
            order = client.order_run()
            restart()
            deadline = time.monotonic() + 60
            while not client.is_ready() and time.monotonic() < deadline:
                time.sleep(0.2)
            assert client.show_order(order["order_id"])["state"] == "queued"
            assert client.apply(client.preview("pause")["token"])["result"]["affected"] == 3
            assert server.process.poll() is None


@pytest.mark.damages_workspace("its database is stopped")
def test_a_database_that_is_away_is_a_transient_error(tmp_path: Path) -> None:
    with postgres_to_restart() as (url, _):
        folder = migrated(tmp_path, state=url, schema="served")
        text = token(folder, "viewer")
        context = api_server(folder)
        server = context.__enter__()
    try:
        with Client(server.url, text) as client:
            assert not client.is_ready()
            with pytest.raises(DatabaseUnavailable, match="does not respond"):
                client.status()
        assert httpx.get(f"{server.url}/health/live").status_code == 200
    finally:
        server.process.kill()
        context.__exit__(None, None, None)

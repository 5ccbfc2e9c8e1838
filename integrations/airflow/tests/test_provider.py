"""The provider as Airflow finds it after an installation, and its connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk import Asset, Connection
from airflow.sdk.exceptions import AirflowException
from penstock_airflow.assets import table_asset, table_of
from penstock_airflow.connections import Server, server_of
from penstock_airflow.hooks import PenstockHook
from servers import Site

PROJECT = Path(__file__).parents[1]

FOUND = """
import json
from airflow.providers_manager import ProvidersManager

manager = ProvidersManager()
provider = manager.providers["penstock-airflow"]
form = manager.connection_form_widgets
fields = {name: widget.field["schema"] for name, widget in form.items() if name.startswith("extra__penstock__")}
print(json.dumps({
    "version": provider.version,
    "hook": manager.hooks["penstock"].hook_class_name,
    "behaviour": manager.field_behaviours["penstock"],
    "fields": fields,
    "links": [name for name in manager.extra_links_class_names if name.startswith("penstock_airflow")],
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the provider, installed in a folder."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--target", folder, PROJECT], check=True)
    return folder


def test_airflow_finds_the_provider_its_connection_form_and_its_link(installed: Path, airflow_database: None) -> None:
    source = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    path = os.pathsep.join([str(installed), str(source)])
    done = subprocess.run(
        [sys.executable, "-c", FOUND],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("version") == "0.1.0"
    assert found.pop("hook") == "penstock_airflow.hooks.PenstockHook"
    assert found.pop("links") == ["penstock_airflow.links.PenstockConsoleLink"]
    assert found["behaviour"]["hidden_fields"] == ["login", "schema"]
    assert found["behaviour"]["relabeling"] == {"password": "Token"}
    assert sorted(found["behaviour"]["placeholders"]) == ["host", "password", "port"]
    fields = {name.removeprefix("extra__penstock__"): schema for name, schema in found["fields"].items()}
    assert sorted(fields) == ["ca_file", "console_url", "scheme", "verify"]
    assert (fields["scheme"]["enum"], fields["verify"]["default"]) == (["https", "http"], True)


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (
            {"host": "penstock.example.com", "password": "secret"},
            Server("p", "https://penstock.example.com:8321", "secret", "https://penstock.example.com:8321"),
        ),
        (
            {"host": "127.0.0.1", "port": 9000, "extra": '{"scheme": "http", "console_url": "https://console/"}'},
            Server("p", "http://127.0.0.1:9000", None, "https://console"),
        ),
        (
            {"host": "https://penstock.example.com/", "extra": '{"verify": false, "ca_file": "ca.pem"}'},
            Server("p", "https://penstock.example.com", None, "https://penstock.example.com", False, "ca.pem"),
        ),
    ],
    ids=["defaults", "http", "address"],
)
def test_a_connection_names_a_server(connection: dict[str, object], expected: Server) -> None:
    assert server_of(Connection(conn_id="p", conn_type="penstock", **connection)) == expected  # type: ignore[arg-type]


def test_the_address_of_a_connection_has_all_fields() -> None:
    found = server_of(Connection.from_uri("penstock://:secret@h:9000/?scheme=http&verify=false", conn_id="p"))
    assert found == Server("p", "http://h:9000", "secret", "http://h:9000", verify=False)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({}, "connection p has no host"),
        ({"host": "h", "extra": '{"scheme": "ftp"}'}, "scheme is 'ftp', not https or http"),
        ({"host": "h", "extra": '{"verify": "maybe"}'}, "verify is 'maybe', not true or false"),
    ],
)
def test_a_connection_that_names_no_server_is_refused(connection: dict[str, object], message: str) -> None:
    with pytest.raises(AirflowException, match=message):
        server_of(Connection(conn_id="p", conn_type="penstock", **connection))  # type: ignore[arg-type]


def test_a_missing_ca_file_is_named() -> None:
    with pytest.raises(AirflowException, match=r"connection p: ca_file /nowhere\.pem: "):
        Server("p", "https://h", None, "https://h", ca_file="/nowhere.pem").client()


def test_the_test_of_a_connection_reports_the_role_or_the_error(
    connection: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PenstockHook().test_connection() == (True, f"{connection.url} accepts airflow, role operator")
    monkeypatch.setenv("AIRFLOW_CONN_PENSTOCK_DEFAULT", connection.connection(password="wrong"))
    accepted, message = PenstockHook().test_connection()
    assert not accepted
    assert "(NotAuthenticated)" in message


def test_an_asset_of_a_table_belongs_to_its_connection() -> None:
    asset = table_asset("demo.campaign_daily", conn_id="ads")
    assert asset.uri == "penstock://ads/demo.campaign_daily"
    assert table_of(asset, "ads") == "demo.campaign_daily"
    assert table_of(asset, "penstock_default") is None
    assert table_of(Asset("s3://ads/demo.campaign_daily"), "ads") is None


def test_the_client_needs_no_spark_and_no_arrow() -> None:
    code = "import penstock.client, sys; print(sorted({'pyspark', 'pyarrow', 'sqlalchemy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

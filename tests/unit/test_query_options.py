"""Options of a query that its source does not support are refused before anything is issued."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.control.select import Selection
from penstock.errors import ConfigError
from support.cli import penstock
from support.workspaces import CAMPAIGNS, open_at

NOW = datetime(2024, 6, 11, 12, tzinfo=UTC)


def workspace(folder: Path, source: dict[str, Any], options: dict[str, Any]) -> Path:
    body = {
        "tenant": "acme",
        "workspace": "ads",
        "state": "sqlite:///state.db",
        "lake": "./lake",
        "customers": [{"id": "1"}],
        "sources": {"shop": source},
        "queries": {"sales": {**CAMPAIGNS, "source": "shop", "options": options}},
    }
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    return folder


CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"kind": "sql", "url": "sqlite:///x.db"}, {}, "sql: field required"),
    ({"kind": "sql", "url": "sqlite:///x.db"}, {"sql": "SELECT :day"}, "sql: there is no parameter :day"),
    ({"kind": "files"}, {}, "path: is missing"),
    ({"kind": "files"}, {"path": "{day}/{date}.csv"}, "{day} cannot be filled in"),
    ({"kind": "files"}, {"path": "{date}.xls"}, "format: is missing"),
    ({"kind": "http"}, {"url": "items/{date}"}, "url: write http:// or https:// and the address"),
    ({"kind": "http", "url": "http://h/"}, {"url": "{day}/{date}"}, "{day} cannot be filled in"),
    (
        {"kind": "http", "url": "http://h/"},
        {"params": {"a": "{first_date}"}},
        "url, params, body or form must have",
    ),
]


@pytest.mark.parametrize(("source", "options", "words"), CASES, ids=range(len(CASES)))
def test_a_plan_refuses_what_a_source_could_not_follow(
    tmp_path: Path, source: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    ws = open_at(workspace(tmp_path, source, options), NOW)
    with pytest.raises(ConfigError) as refused:
        ws.plans.preview(Selection())
    assert str(refused.value).startswith(f"queries.sales.options: {words}")
    ws.context.database.close()


def test_doctor_says_so_too(tmp_path: Path) -> None:
    source, options, words = CASES[0]
    folder = workspace(tmp_path, source, options)
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    told = penstock("doctor", workspace=folder)
    assert told.returncode == 1
    assert f"queries.sales.options: {words}" in told.stdout + told.stderr

"""A real Prometheus scrapes `penstock serve`; the shipped rules and dashboard use metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.app import Workspace
from penstock.observe.metrics import FAMILIES
from support.console_site import Site, console_site
from support.prometheus import prometheus, promtool

MONITORING = Path(str(files("penstock.observe") / "monitoring"))
RULES, DASHBOARD = MONITORING / "penstock-rules.yml", MONITORING / "penstock-dashboard.json"
RULE_TESTS = Path(__file__).parents[1] / "data" / "penstock-rules-test.yml"
FOREIGN = {  # metrics of Prometheus itself and of its client library, with their labels
    "up": {"job", "instance"},
    "process_resident_memory_bytes": {"job", "instance"},
    "process_cpu_seconds_total": {"job", "instance"},
    "table_outcome:penstock_attempts:rate5m": {"table", "outcome"},
}
_WORDS = {"sum", "max", "by", "rate", "increase", "delta", "time", "label_values"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with console_site() as made:
        yield made


def own_values(workspace: Workspace, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(sorted(zip(sample.family.labels, sample.labels, strict=True))): sample.value
        for sample in workspace.metrics.samples()
        if sample.family.name == name
    }


def test_prometheus_scrapes_with_a_token_what_the_workspace_states(site: Site) -> None:
    with prometheus(site.url.removeprefix("http://"), site.tokens["viewer"], [RULES]) as server:
        target = server.target()
        assert (target["health"], target["lastError"]) == ("up", "")
        for name in ("penstock_partitions", "penstock_attempts_total", "penstock_publish_due_partitions",
                     "penstock_orders", "penstock_backfill_partitions", "penstock_open_runs"):  # fmt: skip
            expected = own_values(site.workspace, name)
            assert any(expected.values()), name
            labels = ", ".join(next(family for family in FAMILIES if family.name == name).labels)
            assert server.values(f"sum by ({labels}) ({name})") == expected
        kinds = {name: found[0]["type"] for name, found in server.get("metadata").items() if name in _types()}
        assert {name: kinds[name] for name in _types()} == _types()
        groups = server.get("rules")["groups"]
        assert {rule["name"] for group in groups for rule in group["rules"]} >= {"PenstockServerDown"}
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}


def _types() -> dict[str, str]:
    """OpenMetrics names a counter and an info without their suffixes."""
    absent = ("quota", "last_run")  # the source has no limit, and no run was recorded as finished
    declared = {
        family.name: family.type.value for family in FAMILIES if not any(part in family.name for part in absent)
    }
    return {name.removesuffix("_total").removesuffix("_info"): kind for name, kind in declared.items()
            if not name.startswith("penstock_control_loop_")}  # fmt: skip


def test_prometheus_is_refused_without_a_valid_token(site: Site) -> None:
    with prometheus(site.url.removeprefix("http://"), "wrong") as server:
        target = server.target()
        assert target["health"] == "down"
        assert "401" in target["lastError"]


def test_promtool_finds_nothing_in_the_exposition(site: Site) -> None:
    done = promtool("check", "metrics", content=site.workspace.metrics.exposition()[0])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_accepts_the_rules_and_their_tests_pass(tmp_path: Path) -> None:
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stderr
    for file in (RULES, RULE_TESTS):
        shutil.copy(file, tmp_path)
    tested = promtool("test", "rules", tmp_path / RULE_TESTS.name)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def expressions() -> dict[str, str]:
    """Every expression of the rules and the dashboard, by where it stands."""
    rules = yaml.safe_load(RULES.read_text())
    found = {rule.get("alert") or rule["record"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        found |= {f"{panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    found |= {one["name"]: one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"}
    return found


def used(expression: str) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics of an expression with the labels of their selectors, and the labels of its aggregations."""
    bare = re.sub(r"\[[^\]]*\]", "", expression)
    grouped = {word for words in re.findall(r"by \(([^)]*)\)", bare) for word in re.findall(r"\w+", words)}
    grouped |= set(re.findall(r"label_values\([^,]+, (\w+)\)", bare))
    bare = re.sub(r"by \([^)]*\)|, \w+\)", "", bare)
    metrics: dict[str, set[str]] = {}
    for name, selector in re.findall(r"([a-zA-Z_:][\w:]*)(\{[^}]*\})?", re.sub(r'"[^"]*"', '""', bare)):
        if name not in _WORDS:
            metrics.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=|!)", selector))
    return metrics, grouped


def test_rules_and_dashboard_use_declared_metrics_and_labels() -> None:
    declared: dict[str, set[str]] = {family.name: set(family.labels) for family in FAMILIES} | FOREIGN
    for place, expression in expressions().items():
        metrics, grouped = used(expression)
        assert metrics, place
        for name, labels in metrics.items():
            assert name in declared, f"{place}: {name}"
            assert labels | grouped <= declared[name], f"{place}: {name}"


def test_the_legends_of_the_dashboard_name_labels_of_their_metrics() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    declared: dict[str, set[str]] = {family.name: set(family.labels) for family in FAMILIES} | FOREIGN
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            metrics, grouped = used(target["expr"])
            known = grouped or set().union(*(declared[name] for name in metrics))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, panel["title"]

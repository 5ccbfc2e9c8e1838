"""The workspace of `penstock init` has no faults; the workspace of `make demo` has them, and both files are valid."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.cli.init import write_workspace
from penstock.config.loading import load_settings
from penstock.config.settings import Settings
from penstock.source.demo import DemoOptions, Fault
from penstock.source.registry import hooks_of

TEMPLATE = Path(__file__).parents[2] / "demo" / "template"


def demo_options(settings: Settings) -> DemoOptions:
    return DemoOptions.model_validate(settings.sources["demo"].options)


def test_the_workspace_of_init_has_no_faults(tmp_path: Path) -> None:
    ws = write_workspace(tmp_path / "new", customers=2, days=3)
    ws.context.database.close()
    settings = load_settings(tmp_path / "new", {}, hooks_of)
    options = demo_options(settings)
    assert (options.failure_rate, options.faults) == (0, ())
    text = (tmp_path / "new" / "penstock.yaml").read_text()
    assert "    # failure_rate: 0.05\n" in text
    (tmp_path / "new" / "penstock.yaml").write_text(text.replace("# failure_rate", "failure_rate"))
    assert demo_options(load_settings(tmp_path / "new", {}, hooks_of)).failure_rate == 0.05


def test_the_workspace_of_the_demo_has_faults_when_its_variables_ask_for_them(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATE, tmp_path / "demo")
    file = tmp_path / "demo" / "penstock.yaml"
    file.write_text(file.read_text().replace("FIRST_DAY", "2024-06-01").replace("BROKEN_DAY", "2024-06-07"))
    repaired = load_settings(file, {}, hooks_of)
    assert [len(repaired.customers), *repaired.queries, *repaired.models] == [
        40,
        "campaign_daily",
        "network_daily",
        "daily_spend",
    ]
    assert not any(rule.enabled for rule in demo_options(repaired).faults)
    broken = demo_options(load_settings(file, {"DEMO_FAULTS": "true", "DEMO_FAILURE_RATE": "0.03"}, hooks_of))
    assert [rule.fault for rule in broken.faults if rule.enabled] == [Fault.QUOTA, Fault.WRONG_TYPE, Fault.ZERO_ROWS]
    assert broken.failure_rate == 0.03

"""Shells complete commands, options, and the names of the workspace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.workspaces import customer_id, write_workspace

PENSTOCK = Path(sys.executable).with_name("penstock")


def offered(folder: Path, line: str) -> set[str]:
    """The completions that bash offers at the end of this line."""
    asked = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run([PENSTOCK], cwd=folder, env={**os.environ, **asked}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed(shell: str) -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([PENSTOCK, "--show-completion", shell], env=environment, capture_output=True, text=True)
    assert (done.returncode, "_PENSTOCK_COMPLETE" in done.stdout) == (0, True), done.stderr


def test_the_names_of_the_workspace_are_offered(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path / "w", customers=2)
    assert offered(folder, "penstock state te") == {"terminal"}
    assert offered(folder, "penstock run --source ") == {"demo"}
    assert offered(folder, "penstock run --query camp") == {"campaign_daily"}
    assert offered(folder, "penstock run --customer 1") == {customer_id(1), customer_id(2)}
    assert offered(folder, "penstock run --status ") == {"pending", "success", "failed"}
    assert offered(folder, "penstock read ") == {"demo.campaign_daily"}
    assert offered(tmp_path, f"penstock run --workspace {folder} --source d") == {"demo"}


def test_without_a_workspace_nothing_is_offered_and_nothing_fails(tmp_path: Path) -> None:
    assert offered(tmp_path, "penstock run --source ") == set()
    (tmp_path / "penstock.yaml").write_text("tenant: [")
    assert offered(tmp_path, "penstock run --query ") == set()

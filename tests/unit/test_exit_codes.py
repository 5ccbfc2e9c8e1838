"""One list of exit codes: the errors, the root help, the reference page and the process use it."""

from __future__ import annotations

import re
from pathlib import Path

from penstock import errors
from penstock.errors import ExitCode, PenstockError, TransientError, UsageError
from support.cli import penstock

ROOT = Path(__file__).parents[2]


def every_error() -> list[type[PenstockError]]:
    found, waiting = [], [PenstockError]
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].__subclasses__()
    return found


def test_every_error_ends_with_the_code_of_its_branch() -> None:
    assert set(errors.ExitCode) == {0, 1, 2, 75, 130}
    for error in every_error():
        expected = ExitCode.FAILED
        if issubclass(error, UsageError):
            expected = ExitCode.USAGE
        elif issubclass(error, TransientError):
            expected = ExitCode.TRY_AGAIN
        assert error.exit_code is expected, error


def test_the_help_and_the_reference_list_every_exit_code_with_its_meaning() -> None:
    shown = penstock("--help", COLUMNS="80", TERMINAL_WIDTH="80").stdout
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    for code in ExitCode:
        assert re.search(rf"\b{code.value}: {re.escape(code.meaning)}", shown), code
        assert f"| {code.value} | {code.meaning} |" in page


def test_commands_end_with_these_codes(tmp_path: Path) -> None:
    assert penstock("init", str(tmp_path / "w")).returncode == ExitCode.DONE
    assert penstock("init", str(tmp_path / "w")).returncode == ExitCode.USAGE
    assert penstock("no-such-command").returncode == ExitCode.USAGE
    assert penstock("ready", "demo.campaign_daily", workspace=tmp_path / "w").returncode == ExitCode.FAILED

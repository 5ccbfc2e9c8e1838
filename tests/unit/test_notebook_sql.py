"""`%load_ext penstock` in a real shell of IPython: `%%penstock_sql` shows rows, or assigns them to a variable."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell

from penstock.errors import PenstockError, UsageError
from penstock.notebook import RowsPreview
from support.harness import Harness
from support.ipython import ipython_shell, run
from support.notebooks import fragment, make_workspace
from support.workspaces import key

SELECT = "SELECT logical_date, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY 1 ORDER BY 1"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    made = make_workspace(tmp_path_factory.mktemp("my workspaces") / "workspace")
    yield made
    made.workspace.close()


@pytest.fixture(scope="module")
def one_shell(tmp_path_factory: pytest.TempPathFactory) -> InteractiveShell:
    return ipython_shell(tmp_path_factory.mktemp("ipython"))


@pytest.fixture
def shell(one_shell: InteractiveShell, house: Harness, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """A shell in the folder of the workspace."""
    monkeypatch.chdir(house.folder)
    one_shell.reset(new_session=False)  # type: ignore[no-untyped-call]
    return one_shell


def test_a_cell_shows_the_first_rows(shell: InteractiveShell) -> None:
    found = run(shell, f"%%penstock_sql\n{SELECT}")
    assert isinstance(found, RowsPreview)
    assert fragment(found).text.split("\n")[:4] == [
        "2 rows",
        "logical_date\tclicks\t",
        "2024-06-09\t12\t",
        "2024-06-10\t6\t",
    ]
    assert repr(found) == "logical_date\tclicks\n2024-06-09\t12\n2024-06-10\t6"


def test_the_preview_is_bounded_and_escaped(shell: InteractiveShell) -> None:
    found = run(shell, "%%penstock_sql\nSELECT '<script>' || n AS \"<b>\" FROM range(5000) t(n)")
    text = fragment(found).text
    assert "the first 50 rows" in text
    assert "<b>\t" in text
    assert "<script>0\t" in text
    assert (len(found.rows), found.has_more) == (50, True)
    assert repr(found).endswith("\n...")
    exact = run(shell, "%%penstock_sql\nSELECT n FROM range(50) t(n)")
    assert (len(exact.rows), exact.has_more) == (50, False)


@pytest.mark.parametrize(
    ("option", "kind"),
    [("", "pandas"), ("--as pandas", "pandas"), ("--as polars", "polars"), ("--as arrow", "pyarrow")],
)
def test_a_name_gets_the_whole_result(shell: InteractiveShell, option: str, kind: str) -> None:
    assert run(shell, f"%%penstock_sql {option} daily\n{SELECT}") is None
    daily: Any = shell.user_ns["daily"]
    assert type(daily).__module__.partition(".")[0] == kind
    rows = daily.to_dict("records") if kind == "pandas" else pa.table(daily).to_pylist()
    assert [int(row["clicks"]) for row in rows] == [12, 6]


def test_a_type_without_a_name_is_the_value_of_the_cell(shell: InteractiveShell) -> None:
    assert run(shell, f"%%penstock_sql --as=arrow\n{SELECT}").num_rows == 2


def test_a_line_has_options_and_a_statement(shell: InteractiveShell) -> None:
    assert run(shell, f"%penstock_sql {SELECT}").rows[1][1] == 6
    run(shell, f"rows = %penstock_sql --as arrow {SELECT}")
    assert shell.user_ns["rows"].num_rows == 2


@pytest.mark.parametrize("quote", ['"', "'"])
def test_the_workspace_can_be_elsewhere(
    shell: InteractiveShell, house: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quote: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PenstockError, match=r"penstock\.yaml"):
        run(shell, f"%%penstock_sql\n{SELECT}")
    found = run(shell, f"%%penstock_sql --workspace {quote}{house.folder}{quote}\n{SELECT}")
    assert len(found.rows) == 2


def test_a_snapshot_is_read_as_of_its_time(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = make_workspace(tmp_path)
    house.workspace.data.take_snapshot("before", timedelta(days=20_000))
    house.deliver({key(3): 100})
    house.publish()
    house.workspace.close()
    monkeypatch.chdir(tmp_path)
    now, then = (
        run(shell, f"%penstock_sql {option} SELECT count(*) FROM demo.campaign_daily").rows
        for option in ("", "--as-of before")
    )
    assert (now, then) == ([(12,)], [(9,)])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--as excel", "--as 'excel' is unknown"),
        ("--limit 5", "unknown option --limit"),
        ("--as", "unknown option --as, or one without a value"),
        ("--as arrow --as arrow", "--as is given twice"),
        ("two names", "not the name of a variable"),
        ("x.y", "not the name of a variable"),
    ],
)
def test_options_that_cannot_be_used_are_refused(shell: InteractiveShell, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(shell, f"%%penstock_sql {line}\n{SELECT}")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM demo.campaign_daily", "SELECT 1; SELECT 2", "", "COPY (SELECT 1) TO 'x'"]
)
def test_only_one_select_is_executed(shell: InteractiveShell, statement: str) -> None:
    with pytest.raises(UsageError):
        run(shell, f"%%penstock_sql x\n{statement}\n")
    assert "x" not in shell.user_ns


def test_the_package_does_not_import_ipython() -> None:
    probe = "import sys, penstock, penstock.notebook; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

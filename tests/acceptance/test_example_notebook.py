"""The example notebook runs in a real kernel, and its outputs are what a reader sees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support.notebooks import Fragment, make_workspace
from support.workspaces import customer_id

NOTEBOOK = Path(__file__).parents[2] / "demo" / "notebook.ipynb"


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The output of each cell that has one, by the first line of the cell."""
    make_workspace(tmp_path / "workspace").workspace.close()
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    return {
        cell.source.splitlines()[0]: cell.outputs[-1]["data"]
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.outputs
    }


def test_the_notebook_has_no_stored_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []


def test_the_example_notebook_runs(outputs: dict[str, dict[str, Any]]) -> None:
    shown = {line: Fragment(data["text/html"]).text for line, data in outputs.items() if "text/html" in data}
    assert f"{customer_id(1)}\t██" in shown['ws.grid("campaign_daily")']
    assert "demo.campaign_daily\t2024-06-09\t3\t2" in shown['ws.coverage("demo.campaign_daily")']
    assert "serving attempt 1 with 3 rows" in shown["partition = ws.partitions(limit=1)[0]"]
    assert "2024-06-09\t2\t12" in shown["%%penstock_sql --workspace workspace"]
    assert "plan of 3 partitions" in shown['penstock.open("workspace").plans.preview(limit=20)']
    plain = {line: data["text/plain"] for line, data in outputs.items() if line not in shown}
    assert plain == {
        "%load_ext penstock": "('demo.campaign_daily',)",
        "daily.height": "2",
        "rows = %penstock_sql --workspace workspace --as arrow SELECT count(*) AS n FROM demo.campaign_daily": "9",
    }

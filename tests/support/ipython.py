"""A shell of IPython with the extension, as a notebook has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


def ipython_shell(folder: Path) -> InteractiveShell:
    """A shell after `%load_ext penstock`, whose files are in a folder."""
    config = Config({"HistoryManager": {"enabled": False}})
    made = InteractiveShell(config=config, ipython_dir=str(folder))  # type: ignore[no-untyped-call]
    made.run_line_magic("load_ext", "penstock")
    return made


def run(shell: InteractiveShell, cell: str) -> Any:
    """The value that a cell displays. Raises what the cell raises."""
    done = shell.run_cell(cell)  # type: ignore[no-untyped-call]
    if done.error_before_exec or done.error_in_exec:
        raise done.error_before_exec or done.error_in_exec
    return done.result

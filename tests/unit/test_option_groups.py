"""Groups of options: a command declares a group as one parameter, and Typer sees its options one by one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import penstock.cli
from penstock.cli import options as opt
from penstock.errors import UsageError

# Declarations that only the groups in cli/options.py use; `customers sync --source` names one source, not a filter.
FILTERS = {"Keys", "Customers", "Queries", "OnDate", "Since", "Until", "Status"}

app = typer.Typer()


@app.command()
@opt.option_groups
def example(
    table: Annotated[str, typer.Argument()],
    filters: opt.TableFilters,
    change: opt.ChangeOptions,
    depth: Annotated[int, typer.Option("--depth")] = 3,
) -> None:
    """An example."""
    typer.echo(f"{table} {filters} {change} {depth}")


def test_a_command_receives_each_group_as_one_value() -> None:
    line = ["t", "--customer", "1", "--customer", "2", "--since", "2024-06-01", "--yes", "--actor", "kim"]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    filters = opt.TableFilters(customers=["1", "2"], since="2024-06-01")
    assert done.stdout == f"t {filters} {opt.ChangeOptions(yes=True, actor='kim')} 3\n"


def test_the_options_of_a_group_stand_in_the_place_of_the_group() -> None:
    [command] = [typer.main.get_command(app)]
    names = ["table", "customers", "date", "since", "until", "dry_run", "yes", "force", "actor", "depth"]
    assert [parameter.name for parameter in command.params][: len(names)] == names
    assert command.help == "An example."


def test_only_the_groups_declare_filters() -> None:
    """A filter that a command declares itself would be missing in the other commands."""
    declared = [
        f"{file.name}:{node.lineno} {node.attr}"
        for file in sorted(Path(penstock.cli.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in FILTERS and isinstance(node.value, ast.Name)
        if node.value.id == "opt"
    ]
    assert declared == []


@pytest.mark.parametrize("filters", [opt.Filters(source=""), opt.Filters(keys=["a/1/b/2024-06-01"], source="a")])
def test_empty_and_contradictory_filters_are_refused(filters: opt.Filters) -> None:
    with pytest.raises(UsageError):
        filters.selection()

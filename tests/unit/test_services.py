"""The services of a workspace are wired as their constructors declare."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from penstock.app import Workspace, load_workspace
from support.workspaces import write_workspace

SERVICES = inspect.get_annotations(Workspace)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_constructed_with_the_services_that_it_names(name: str, tmp_path: Path) -> None:
    ws = load_workspace(write_workspace(tmp_path))
    service = getattr(ws, name)
    assert type(service).__name__ == SERVICES[name]
    assert getattr(ws, name) is service, "one object for each workspace"
    _, context, *needs = inspect.signature(type(service).__init__).parameters.values()
    assert (context.annotation, service._context) == ("Context", ws.context)
    for need in needs:
        [attribute] = [known for known, kind in SERVICES.items() if kind == need.annotation]
        assert getattr(service, f"_{need.name}") is getattr(ws, attribute), need.name


def test_every_service_class_is_on_the_workspace() -> None:
    folder = Path(inspect.getfile(Workspace)).parent
    named = {line.split()[1].rstrip(":") for file in folder.glob("*.py") for line in _class_lines(file)}
    assert {name for name in named if name.endswith(("Service", "Factory"))} == set(SERVICES.values())


def _class_lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.startswith("class ")]

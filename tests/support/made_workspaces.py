"""A registry of the workspaces that tests create, so that each test ends with the checker."""

from __future__ import annotations

from pathlib import Path

_made: dict[Path, None] = {}  # in the order of creation


def remember(folder: Path) -> None:
    _made[folder.resolve()] = None


def remember_below(folder: Path) -> None:
    """Register the workspaces that commands created in a folder."""
    for file in sorted(folder.rglob("penstock.yaml")):
        remember(file.parent)


def forget(under: Path | None = None) -> None:
    """Forget every workspace, or those below a folder."""
    for folder in [*_made]:
        if under is None or folder.is_relative_to(under.resolve()):
            del _made[folder]


def violations(under: Path | None = None) -> list[str]:
    """The violations in every registered workspace that still exists. For those `under` a folder, whose test is over,
    the projections are compared with a rebuild as well."""
    from support.checker import check_workspace  # here: child processes of tests import this module, too

    found: list[str] = []
    for folder in _with_state():
        found += [f"{folder}: {violation}" for violation in check_workspace(folder)]
        if under is not None and folder.is_relative_to(under.resolve()):
            found += projection_violations(folder)
    return found


def projection_violations(folder: Path) -> list[str]:
    """The same for projections in a local folder; without any there is nothing to compare."""
    from support.checker import places
    from support.projections import check_projections

    _, lake, _ = places(folder)
    if "://" in lake or not Path(lake, "projections").is_dir():
        return []
    return [f"{folder}: {violation}" for violation in check_projections(folder)]


def all_projection_violations() -> list[str]:
    return [violation for folder in _with_state() for violation in projection_violations(folder)]


def _with_state() -> list[Path]:
    """One folder for each state database that exists; a test may have several folders that share one."""
    from support.checker import places

    found: dict[tuple[str, str | None], Path] = {}
    for folder in _made:
        if not (folder / "penstock.yaml").exists():
            continue
        state, _, schema = places(folder)
        if not state.startswith("sqlite") or Path(state.removeprefix("sqlite:///")).exists():
            found.setdefault((state, schema), folder)
    return list(found.values())

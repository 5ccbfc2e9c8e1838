"""Penstock: partition authority for Spark pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import Reader, Workspace

__version__ = "0.1.0"
__all__ = ["Reader", "Workspace", "open", "reader"]


def open(path: str = ".") -> Workspace:  # noqa: A001 - `penstock.open(...)` is how it is meant to be read
    """Open the workspace in (or above) the folder `path`."""
    from penstock.app import open_workspace

    return open_workspace(path)


def reader(path: str = ".") -> Reader:
    """Open the workspace in (or above) the folder `path` read-only: no method of the object changes anything."""
    from penstock.app import open_reader

    return open_reader(path)


def __getattr__(name: str) -> Any:
    if name in ("Reader", "Workspace"):
        from penstock import app

        return getattr(app, name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")

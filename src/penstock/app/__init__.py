"""The composition root: settings in, wired services out. Also the Python API."""

from penstock.app.workspace import Workspace, load_workspace, open_workspace

__all__ = ["Workspace", "load_workspace", "open_workspace"]

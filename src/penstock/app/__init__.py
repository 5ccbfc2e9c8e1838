"""The composition root: settings in, wired services out. Also the Python API."""

from penstock.app.context import os_user
from penstock.app.partitions import PartitionHandle
from penstock.app.reader import Reader, open_reader
from penstock.app.workspace import Workspace, load_workspace, open_workspace

__all__ = [
    "PartitionHandle",
    "Reader",
    "Workspace",
    "load_workspace",
    "open_reader",
    "open_workspace",
    "os_user",
]

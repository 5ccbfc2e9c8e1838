"""The composition root: settings in, wired application out. Also the Python API.

One object, in layers: each part is a class that knows the parts below it, and nothing above.
"""

from penstock.app.explaining import PartitionHandle
from penstock.app.opened import os_user
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

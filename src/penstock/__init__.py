"""Penstock: partition authority for Spark pipelines.

>>> import penstock
>>> ws = penstock.open("my-workspace")
>>> ws.read("demo.campaign_daily", since="2024-06-01").arrow()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AccessDenied,
    ActRefused,
    AlreadySealed,
    AuthFailed,
    ConfigError,
    DatabaseUnavailable,
    DataError,
    HistoryProtected,
    ImpossibleRow,
    LakeMismatch,
    LeaseLost,
    LoginUnavailable,
    NotAuthenticated,
    PenstockError,
    PlanOutdated,
    QuotaExceeded,
    QuotaUsedUp,
    RawError,
    SourceUnavailable,
    SparkFailed,
    StateConflict,
    TerminalError,
    TooManyLogins,
    TransientError,
    UsageError,
    VersionRefused,
    WarehouseError,
)

if TYPE_CHECKING:
    from penstock.app import Workspace
    from penstock.app.reader import Reader
    from penstock.control.select import Selection
    from penstock.partition import PartitionKey
    from penstock.source.protocol import Source

__version__ = "0.1.0"
__all__ = [
    "AccessDenied",
    "ActRefused",
    "AlreadySealed",
    "AuthFailed",
    "ConfigError",
    "DataError",
    "DatabaseUnavailable",
    "HistoryProtected",
    "ImpossibleRow",
    "LakeMismatch",
    "LeaseLost",
    "LoginUnavailable",
    "NotAuthenticated",
    "PartitionKey",
    "PenstockError",
    "PlanOutdated",
    "QuotaExceeded",
    "QuotaUsedUp",
    "RawError",
    "Reader",
    "Selection",
    "Source",
    "SourceUnavailable",
    "SparkFailed",
    "StateConflict",
    "TerminalError",
    "TooManyLogins",
    "TransientError",
    "UsageError",
    "VersionRefused",
    "WarehouseError",
    "Workspace",
    "open",
    "reader",
]

# Imported at first use: `import penstock` loads no database and no Arrow.
_LAZY = {
    "Reader": "penstock.app.reader",
    "Workspace": "penstock.app",
    "PartitionKey": "penstock.partition",
    "Selection": "penstock.control.select",
    "Source": "penstock.source.protocol",
}


def open(path: str = ".") -> Workspace:  # noqa: A001 - the name is part of the public API: `penstock.open(...)`
    """The workspace in (or above) the folder `path`. Raises ConfigError if there is none, or if its database is missing
    or of another version.

    >>> ws = penstock.open("my-workspace")
    """
    from penstock.app import open_workspace

    return open_workspace(path)


def reader(path: str = ".") -> Reader:
    """The same workspace for consumers: an object without a method that changes anything. It opens the database
    read-only.

    >>> penstock.reader("my-workspace").read("demo.campaign_daily").arrow()
    """
    from penstock.app.reader import open_reader

    return open_reader(path)


def load_ipython_extension(shell: Any) -> None:
    """Register `%%penstock_sql` and `%penstock_sql`: IPython calls this for `%load_ext penstock`."""
    from penstock.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return found
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

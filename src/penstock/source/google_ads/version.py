"""The versions of the Google Ads API that the installed client supports, and the modules of a version."""

from __future__ import annotations

from datetime import date
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

DEFAULT = "v26"

# The day from which requests of a version fail, by Google's announcements and its projected schedule, of which only the
# month is known: then the first of the month. State of 18 November 2026.
SUNSETS = {
    "v20": date(2026, 6, 10),
    "v21": date(2026, 8, 5),
    "v22": date(2026, 10, 7),
    "v23": date(2027, 2, 1),
    "v24": date(2027, 5, 1),
    "v25": date(2027, 8, 1),
    "v26": date(2027, 11, 1),
}

_PACKAGE = "google.ads.googleads"


def versions() -> list[str]:
    """The API versions that the installed client supports, oldest first. Raises ConfigError without the client."""
    try:
        found = find_spec(_PACKAGE)
    except ModuleNotFoundError:
        found = None
    if found is None or not found.submodule_search_locations:
        raise ConfigError("kind google_ads needs Google's client: install penstock[google-ads]")
    folders = [entry for root in found.submodule_search_locations for entry in Path(root).glob("v[0-9]*")]
    return sorted((folder.name for folder in folders), key=lambda name: (len(name), name))


def known_version(wanted: str | None) -> str:
    """The wanted version, or the default. Raises ConfigError if the installed client does not support it."""
    known, version = versions(), wanted or DEFAULT
    if version not in known:
        raise ConfigError(f"api_version: the installed client does not support {version} (known: {', '.join(known)})")
    return version


def part(version: str, name: str) -> Any:
    """Import a module of the client library for one API version. The first import takes about two seconds."""
    return import_module(f"{_PACKAGE}.{version}.{name}")

"""Time of readiness queries: `coverage` of a table, and `ready` of it."""

from __future__ import annotations

from bench.scale_case import Case, published
from bench.workload import ASSET
from penstock.app import Workspace


def _coverage(workspace: Workspace) -> None:
    days = workspace.coverage(ASSET)
    expected, available = sum(day.expected for day in days), sum(day.available for day in days)
    if not 0 < expected - available <= expected // 50:
        raise SystemExit(f"one partition in a hundred is missing, but {available} of {expected} are available")


def _ready(workspace: Workspace) -> None:
    if workspace.ready(ASSET):
        raise SystemExit("one partition in a hundred is missing, but the table is ready")


READINESS = (Case("coverage", published, _coverage), Case("ready", published, _ready))

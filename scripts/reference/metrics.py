"""The page of metrics: every family of the table in `penstock.observe.metrics`."""

from __future__ import annotations

from penstock.observe.metrics import FAMILIES

_INTRODUCTION = """\
`penstock serve` exports these metrics at `GET /metrics`, beside the standard metrics of the process (`process_*`,
`python_*`). They are computed from the state database and the status board when Prometheus asks, so they describe the
workspace, not the server: they are the same from every server, and a dead worker is visible. A label never has the
cardinality of customers or partitions. See [metrics and alerts with Prometheus](../howto/metrics.md).
"""


def page() -> str:
    """The page as Markdown."""
    rows = [
        f"| `{family.name}` | {family.type.value} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in FAMILIES
    ]
    return "\n".join(
        ["# Metrics\n", _INTRODUCTION, "| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""]
    )

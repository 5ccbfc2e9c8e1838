"""The reference page of the Python API: every public class with its methods, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import penstock
from penstock.app.backfills import BackfillService
from penstock.app.customers import CustomerService
from penstock.app.data import DataService
from penstock.app.ledger import LedgerService
from penstock.app.lineage import LineageService
from penstock.app.maintenance import MaintenanceService
from penstock.app.operations import OperationService
from penstock.app.partitions import PartitionHandle, PartitionService
from penstock.app.plans import PlanService
from penstock.app.quotas import QuotaService
from penstock.app.raw_runs import RawService
from penstock.app.readiness import ReadinessService
from penstock.app.rechecks import RecheckService
from penstock.app.recovery import Recovery
from penstock.app.rounds import RoundService
from penstock.app.runs import RunService
from penstock.app.status import StatusService
from penstock.warehouse.reader import Vouched

# The page's sections: where a program finds the object, and its class.
CLASSES: tuple[tuple[str, type], ...] = (
    ("penstock.open(path)", penstock.Workspace),
    ("penstock.reader(path)", penstock.Reader),
    ("ws.read(table)", Vouched),
    ("ws.partition(key)", PartitionHandle),
    ("ws.runs", RunService),
    ("ws.rounds", RoundService),
    ("ws.plans", PlanService),
    ("ws.partitions", PartitionService),
    ("ws.status", StatusService),
    ("ws.operations", OperationService),
    ("ws.backfills", BackfillService),
    ("ws.rechecks", RecheckService),
    ("ws.data", DataService),
    ("ws.readiness", ReadinessService),
    ("ws.raw", RawService),
    ("ws.customers", CustomerService),
    ("ws.quotas", QuotaService),
    ("ws.ledger", LedgerService),
    ("ws.lineage", LineageService),
    ("ws.maintenance", MaintenanceService),
    ("ws.maintenance.recovery", Recovery),
    ("penstock.Selection", penstock.Selection),
    ("penstock.PartitionKey", penstock.PartitionKey),
)
# Methods that services call on each other; they are no promise to programs.
INTERNAL = {"emit_or_log", "referenced", "replan", "requeue"}
FUNCTIONS = (penstock.open, penstock.reader)
_EXAMPLE = re.compile(r"^\s*(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)
_INTRODUCTION = """\
# Python API

`penstock.open(path)` opens a workspace, `penstock.reader(path)` opens it for reading only. The services of a workspace
(`ws.runs`, `ws.operations`, ...) do what the commands do, with the same previews. In the examples, `ws` is
`penstock.open("my-workspace")`, `spark` a Spark session, `key` a `PartitionKey`. A test type-checks all of them.
"""


def members(found: type) -> Iterator[tuple[str, object]]:
    """The public methods and properties that a class defines, in the order of its source."""
    for name, value in vars(found).items():
        if name.startswith("_") or name in INTERNAL:
            continue
        if inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod):
            yield name, value


def docstring(value: object) -> str:
    target = value.fget if isinstance(value, property) else value
    return inspect.getdoc(target) or ""


def examples(text: str) -> list[str]:
    """The code after `>>>` in a docstring."""
    return [match.group(1) for match in _EXAMPLE.finditer(text)]


def page() -> str:
    """The page as Markdown."""
    lines = [_INTRODUCTION, "## Functions\n"]
    for function in FUNCTIONS:
        lines += _entry(f"penstock.{function.__name__}", function)
    for place, found in CLASSES:
        lines += [f"## `{place}`\n", f"Class `{found.__name__}`. {_prose(inspect.getdoc(found) or '')}\n"]
        for name, value in members(found):
            lines += _entry(name, value)
    errors = [name for name in penstock.__all__ if isinstance(getattr(penstock, name), type)]
    named = ", ".join(f"`{name}`" for name in errors if issubclass(getattr(penstock, name), Exception))
    lines += [
        "## Errors\n",
        f"All are subclasses of `penstock.PenstockError`; [errors](errors.md) explains each: {named}.\n",
    ]
    return "\n".join(lines)


def _entry(name: str, value: object) -> list[str]:
    text = docstring(value)
    lines = [f"### `{name}{_signature(value)}`\n", _prose(text), ""]
    if code := examples(text):
        lines += ["```python", *code, "```", ""]
    return lines


def _prose(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not _EXAMPLE.match(line)).strip()


def _signature(value: object) -> str:
    if isinstance(value, property):
        return ""
    function = value.__func__ if isinstance(value, classmethod) else value
    assert callable(function)
    shown = inspect.signature(function)
    kept = [one for name, one in shown.parameters.items() if name not in ("self", "cls")]
    text = str(shown.replace(parameters=kept)).replace("'", "")
    return re.sub(r"<function .*? at 0x[0-9a-f]+>", "...", text)  # a default that is a function

"""Keeps pyarrow from importing pandas, which takes a third of a second, in commands that use no data frames.

pyarrow imports pandas whenever it makes an array from Python values, to recognize pandas objects among them, and goes
on without pandas if that is not installed. Here the import fails for pyarrow and for this package alone: a source of
the user that imports pandas gets it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

_REFUSED = ("pyarrow", "penstock")


def refuse_pandas() -> None:
    """Let pyarrow work without pandas from now on. Does nothing if pandas is imported already."""
    if "pandas" not in sys.modules and not _finders():
        sys.meta_path.insert(0, _RefusingFinder())


def allow_pandas() -> None:
    """Let pyarrow recognize pandas objects again. A process that starts Spark needs it."""
    for finder in _finders():
        sys.meta_path.remove(finder)


def _finders() -> list[_RefusingFinder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _RefusingFinder)]


class _RefusingFinder(MetaPathFinder):
    """Finds no pandas for code of pyarrow and of this package. Code in C has no frame: the caller of it counts."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas" and _importer() in _REFUSED:
            raise ModuleNotFoundError("pandas is not imported by this command", name=fullname)
        return None


def _importer() -> str:
    """The top-level package of the module that is importing."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", "")).partition(".")[0]

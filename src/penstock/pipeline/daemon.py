"""The process from which Spark forks the Python workers of a local master, with the modules they need already imported.

Spark puts a zip of PySpark's sources first on the path of its workers. Modules from a zip are compiled at every start,
so the installed package, which is the same and already compiled, is used instead.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

MODULE = __name__  # the module that Spark starts

_PACKAGES = ("pyspark", "py4j")
_NEEDED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "penstock.pipeline.extract",
    "penstock.pipeline.validate",
    "penstock.pipeline.load",
    "pandas",  # pyarrow imports it when it makes an array from Python values; here it is imported once for all workers
)


def without_zips(path: Sequence[str]) -> list[str]:
    """Remove the zips that belong to the installed PySpark from the path. Zips of another Spark stay: they differ."""
    folders = [entry for entry in path if not entry.endswith(".zip")]
    found = [PathFinder.find_spec(package, folders) for package in _PACKAGES]
    if not all(spec and spec.origin for spec in found):
        return list(path)
    zips = Path(str(found[0] and found[0].origin)).parent / "python" / "lib"
    return [entry for entry in path if Path(entry).parent != zips]


def main() -> None:
    sys.path[:] = without_zips(sys.path)
    # Only imports, and no Python threads. Threads that native libraries start (allocators, linear algebra) survived
    # the fork in all tests on Linux.
    with redirect_stdout(sys.stderr):  # Spark expects a port number on stdout, and nothing else
        for module in _NEEDED:
            try:
                import_module(module)
            except Exception:  # noqa: BLE001 - the importer imports it again, and fails with a better message
                traceback.print_exc()
    from pyspark.daemon import manager

    from penstock.pipeline.memory import freeze_imports, keep_freed_memory

    freeze_imports()
    keep_freed_memory()
    manager()


if __name__ == "__main__":
    main()

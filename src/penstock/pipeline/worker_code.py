"""Our package as a zip, shipped to the executors of a cluster so that driver and workers run the same code."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

_DATA_SOURCE = "pyspark_penstock.py"  # the module by which Spark finds the data source `penstock`


@cache
def package_zip() -> str:
    """Return the path of the zip. It is written once per process and deleted at its end."""
    package = Path(__file__).parents[1]
    folder = tempfile.mkdtemp(prefix="penstock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder, "penstock.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [*sorted(package.rglob("*.py")), package.parent / _DATA_SOURCE]:
            archive.write(path, path.relative_to(package.parent))
    return str(target)

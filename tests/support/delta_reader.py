"""A Delta reader that shares no code with ours: DuckDB's extension, which is built on delta-kernel.

It needs an older DuckDB than the locked one. So both are installed once, with hashes, into a separate folder inside the
virtual environment; a separate process loads them from there, without a network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

_LOCK = Path(__file__).parents[2] / "requirements" / "delta-reader.lock"

_READ = """
import json, sys
from pathlib import Path
import duckdb, duckdb_extension_delta

[extension] = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
connection.execute("SET enable_progress_bar = false")  # it would go to standard output
connection.execute(f"LOAD '{extension}'")
answers = []
for place in sys.argv[1:]:
    found = connection.execute("SELECT * FROM delta_scan(?)", [place])
    names = [column[0] for column in found.description]
    answers.append([dict(zip(names, row)) for row in found.fetchall()])
print(json.dumps({"version": duckdb.__version__, "tables": answers}, default=str))
"""


def installed() -> Path:
    """The folder with the reader; it is filled when it is not there. A folder appears whole or not at all."""
    digest = sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "delta-reader" / digest
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--require-hashes", "--target", f"{place}/new", "-r", str(_LOCK)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the Delta reader of {_LOCK.name} could not be installed:\n{done.stderr[-2000:]}")
        Path(place, "new").rename(folder)
    return folder


def read(places: list[str]) -> list[list[dict[str, Any]]]:
    """The rows of Delta tables as the other reader sees them, values as text where JSON has no type for them."""
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(installed())!r})\n{_READ}", *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the Delta reader failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    if not answer["version"].startswith("1."):
        raise RuntimeError(f"this is not the other reader but DuckDB {answer['version']}")
    tables: list[list[dict[str, Any]]] = answer["tables"]
    return tables

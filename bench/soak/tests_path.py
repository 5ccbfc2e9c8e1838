"""Makes the servers and the checker of the tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def add_tests_to_path() -> None:
    if (tests := str(ROOT / "tests")) not in sys.path:
        sys.path.append(tests)

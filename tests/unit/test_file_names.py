"""Names of test files: pytest imports them by name, so each name occurs once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_the_name_of_each_test_file_occurs_once() -> None:
    names = Counter(file.name for file in Path(__file__).parents[1].glob("*/test_*.py"))
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []

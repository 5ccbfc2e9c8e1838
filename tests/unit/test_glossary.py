"""Every module is named in the terms of the field or of the glossary, and every coined term has a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
FIELD_WORDS = Path(__file__).parents[1] / "data" / "field_words.txt"

# Modules with a name that is neither in the glossary nor in the list, and why it stays.
EXCEPTIONS: dict[str, str] = {}


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a heading of the glossary, without its header."""
    [section] = re.findall(rf"^# *#? {title}\n(.*?)(?=^#|\Z)", GLOSSARY.read_text(), re.M | re.S)
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def terms(title: str) -> list[str]:
    """The terms of a table of the glossary; a row may explain several, separated by commas."""
    return [term for row in rows(title) for term in row[0].split(", ")]


def singular(word: str) -> str:
    """`entries` -> `entry`, `tables` -> `table`; other words stay."""
    if word.endswith("ies"):
        return word.removesuffix("ies") + "y"
    return word if word.endswith("ss") else word.removesuffix("s")


def known_words() -> set[str]:
    field = FIELD_WORDS.read_text().split()
    glossary = re.findall(r"\w+", " ".join(terms("Glossary")))
    return {singular(word) for word in [*field, *glossary]}


def unknown_words(name: str, known: set[str]) -> list[str]:
    """The words of a module or package name that are not known."""
    return [word for word in name.split("_") if singular(word) not in known]


def names() -> Iterator[tuple[str, str]]:
    """The path and the name of every module and package, without migrations, whose names are numbered."""
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE)
        if "migrations" in path.parts or file == PACKAGE / "__init__.py" or file.stem == "__main__":
            continue
        yield str(path), file.parent.name if file.stem == "__init__" else file.stem


def coined() -> dict[str, list[str]]:
    known = known_words()
    found = {path: unknown_words(name, known) for path, name in names()}
    return {path: words for path, words in found.items() if words}


def test_every_module_name_consists_of_known_terms() -> None:
    found = {path: words for path, words in coined().items() if path not in EXCEPTIONS}
    assert found == {}, "use a term of the field (tests/data/field_words.txt), or explain the term in docs/glossary.md"


def test_every_exception_is_still_needed_and_has_a_reason() -> None:
    assert set(EXCEPTIONS) <= set(coined())
    assert all(EXCEPTIONS.values())


def test_the_glossary_explains_each_term_once() -> None:
    for title in ("Glossary", "Terms of our own"):
        assert [term for term, count in Counter(terms(title)).items() if count > 1] == []
        assert [row for row in rows(title) if len(row) != 2 or len(row[1].split()) < 3] == []


def test_every_term_of_our_own_is_in_the_glossary() -> None:
    assert set(terms("Terms of our own")) <= set(terms("Glossary"))


def test_the_list_of_field_words_is_sorted_and_repeats_no_term_of_the_glossary() -> None:
    words = FIELD_WORDS.read_text().split()
    assert words == sorted(set(words))
    assert {singular(word) for word in words} & {singular(term) for term in terms("Glossary")} == set()


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("event_page", []),
        ("chronicle", ["chronicle"]),
        ("set_aside", ["aside"]),
        ("histories", []),
        ("desk", ["desk"]),
    ],
)
def test_the_check_itself_finds_coined_words(name: str, unknown: list[str]) -> None:
    assert unknown_words(name, known_words()) == unknown

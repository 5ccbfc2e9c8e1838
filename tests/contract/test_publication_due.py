"""What waits to be published: nothing after a publication, and what moved on meanwhile is not forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import builders
from house import House
from penstock.warehouse import publish
from workspaces import key


@pytest.fixture
def house() -> Iterator[House]:
    with builders.quick_folder() as folder:
        made = House(Path(folder))
        yield made
        made.workspace.database.close()


def waiting(house: House) -> int:
    return house.workspace.pointers.waiting()


def test_nothing_waits_after_a_publication(house: House) -> None:
    assert waiting(house) == 0
    house.deliver({key(1): 1, key(2): 1})
    assert waiting(house) == 2
    assert house.publish().loaded == 2
    assert waiting(house) == 0
    assert house.publish().loaded == 0


def test_what_was_accepted_while_its_publication_was_under_way_is_not_forgotten(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.deliver({key(1): 1, key(2): 1})
    newer: list[str] = []

    def reach(name: str) -> None:
        if name.endswith(".committed") and not newer:  # the rows are in the table, the pointers are not
            newer.append(house.deliver({key(1): 2}))

    monkeypatch.setattr(publish, "reach", reach)
    house.publish()
    assert newer
    house.publish()  # the first one may have come to it, too
    assert waiting(house) == 0
    assert house.clicks() == {key(1): {2}, key(2): {1}}

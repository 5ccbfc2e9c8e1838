"""Readers that run while publishers are killed in every gap: each read has one complete publication."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.partition import new_ulid
from support import builders
from support.checker import check_workspace
from support.harness import Harness
from support.loader_processes import Watch
from support.publisher_kills import COMPACT_GAPS, PUBLISH_GAPS, Walk, expected_mending

PARTITIONS, READERS = 400, 2


@pytest.mark.parametrize("backend", builders.BACKENDS)
def test_readers_see_one_whole_publication_while_publishers_die_in_every_gap(
    backend: str, request: pytest.FixtureRequest
) -> None:
    with builders.quick_folder() as name:
        url = request.getfixturevalue("postgres_url") if backend == "postgresql" else None
        house = Harness(Path(name), state=url, schema=f"t_{new_ulid().lower()}" if url else None)
        walk = Walk(house, PARTITIONS)
        walk.prepare()
        watch = Watch(Path(name), READERS, PARTITIONS)
        try:
            survived = list(walk.through(watch))
            watch.end()
        finally:
            watch.kill()
        assert watch.caught() == []
        assert [one.gap for one in survived] == [*COMPACT_GAPS, *PUBLISH_GAPS]
        assert {one.gap: one.mended for one in survived} == {one.gap: expected_mending(one.gap) for one in survived}
        assert house.workspace.maintenance.verify((), lambda share: None, raw=True).wrong == {}
        assert check_workspace(Path(name)) == []
        walk.close()

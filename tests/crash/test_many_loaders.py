"""Eight loaders and several readers at once, some killed: every read has complete partitions of one run each."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.partition import new_ulid
from support import builders
from support.checker import check_workspace
from support.harness import Harness
from support.loader_processes import SHAKY, STEADY, TABLE, Watch, rows_of, start, whole_slices
from support.workspaces import rows_by_partition

LOADERS, READERS, ROUNDS, KILLS = 8, 3, 8, 4
_LONGEST_SECONDS = 300


@pytest.mark.parametrize("backend", builders.BACKENDS)
def test_every_read_is_of_whole_slices_whatever_loaders_do(backend: str, request: pytest.FixtureRequest) -> None:
    with builders.quick_folder() as name:
        folder = Path(name)
        url = request.getfixturevalue("postgres_url") if backend == "postgresql" else None
        house = Harness(folder, state=url, schema=f"t_{new_ulid().lower()}" if url else None)
        house.under("v2").workspace.context.database.close()
        house.deliver(dict.fromkeys([*STEADY, *SHAKY], 1), rows_of(1))
        house.publish()
        watch = Watch(folder, READERS)
        try:
            watch.wait_for_a_look()
            load_and_kill(folder)
            watch.wait_for_a_look()
            watch.end()
        finally:
            watch.kill()
        assert watch.caught() == []
        check(house)
        assert check_workspace(folder) == []
        house.workspace.context.database.close()


def load_and_kill(folder: Path) -> None:
    die = random.Random(7)
    loaders = [start("load", folder, seed, ROUNDS) for seed in range(1, LOADERS + 1)]
    killed, deadline = 0, time.monotonic() + _LONGEST_SECONDS
    try:
        while any(loader.poll() is None for loader in loaders):
            assert time.monotonic() < deadline, "the loaders do not come to an end"
            time.sleep(1 + die.random())
            alive = [loader for loader in loaders if loader.poll() is None]
            if killed < KILLS and alive:
                victim = die.choice(alive)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                killed += 1
                loaders.append(start("load", folder, LOADERS + killed, ROUNDS))
    finally:
        for loader in loaders:
            loader.kill()
            loader.wait()
    codes = [loader.returncode for loader in loaders]
    assert sorted(codes) == [-signal.SIGKILL] * killed + [0] * LOADERS
    assert killed


def check(house: Harness) -> None:
    """In the end pointers match authority, tables match pointers, and no batch is unfinished."""
    ws = house.workspace
    house.workers.mark_dead_workers()
    house.publish()
    assert house.unfinished() == set()
    assert ws.context.pointers.waiting() == 0
    assert ws.maintenance.differences() == ([], {})
    assert ws.maintenance.verify((), lambda share: None, raw=True).wrong == {}
    trusted = {}
    for partition in (*STEADY, *SHAKY):
        state, pointer = ws.context.state.state(partition), ws.context.pointers.pointer(partition)
        assert state is not None
        assert pointer is not None
        if state.status == "success":
            trusted[partition] = state.current_run_id
            assert (pointer.run_id, pointer.available) == (state.current_run_id, True)
        else:
            assert not pointer.available
    assert set(STEADY) <= set(trusted)
    found = whole_slices(ws.data.vouched(TABLE).arrow())
    assert {partition: run for partition, (_, run) in found.items()} == trusted
    plain = [
        DeltaTable(ws.context.lake.uri(head.location)).to_pyarrow_table().num_rows
        for _, head in ws.maintenance.tables()
    ]
    assert sum(plain) == sum(len(rows) for rows in rows_by_partition(ws).values())

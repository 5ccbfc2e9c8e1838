"""The sequence of actions, a pure function of the seed: only the times depend on the machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """One fault or operation. `chance` seeds its own choices (which process, which partition, for how long)."""

    number: int
    kind: str
    pause: float  # seconds before it
    chance: int


FAULTS: Mapping[str, int] = {
    "kill_driver": 2,
    "kill_process_group": 1,
    "pause_past_the_lease": 2,
    "database_outage": 2,
    "disk_full": 1,
    "storage_errors": 2,
    "clock_skew": 2,
}
OPERATIONS: Mapping[str, int] = {
    "demote": 3,
    "rollback": 3,
    "approve": 3,
    "retry": 2,
    "release_holds": 1,
    "backfill": 2,
    "vacuum": 1,
    "snapshot": 2,
    "read_snapshot": 3,
    "raw_gc": 1,
    "ledger_export": 1,
    "ledger_rebuild": 1,
    "look": 2,
    "backup": 1,
    "restore_older_backup": 1,
}


def actions(seed: int, longest_pause: float = 2.0) -> Iterator[Action]:
    """Yield actions without end. Each kind occurs according to its weight in every round, in random order."""
    chance = random.Random(f"soak/{seed}")
    weights = {**FAULTS, **OPERATIONS}
    number = 0
    while True:
        deck = [kind for kind, weight in weights.items() for _ in range(weight)]
        chance.shuffle(deck)
        for kind in deck:
            yield Action(number, kind, round(chance.uniform(0.2, longest_pause), 2), chance.randrange(2**32))
            number += 1

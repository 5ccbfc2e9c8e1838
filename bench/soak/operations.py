"""The operations of a soak: commands as an operator types them, on partitions that the seed chooses."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg

from bench.soak.backups import Backups
from bench.soak.environment import DAYS, TABLES, Environment
from bench.soak.plan import OPERATIONS, Action
from bench.soak.report import Report
from support.checker import places
from support.state_tables import Row, StateTables, key_of, read_state

Slices = dict[tuple[str, str], tuple[str, int]]  # customer and day: run and number of rows
EXCLUSIVE = ("restore_older_backup",)  # no other process may be active


class Operations:
    def __init__(self, env: Environment, backups: Backups, report: Report) -> None:
        self._env = env
        self._backups = backups
        self._report = report
        self._snapshots: dict[str, dict[str, Slices]] = {}
        self._kinds: dict[str, Callable[[random.Random], Any]] = {
            "demote": self._demote,
            "rollback": self._rollback,
            "approve": self._approve,
            "retry": lambda _: self._command("retry", "state", "retry", "--yes"),
            "release_holds": lambda _: self._command("release_holds", "state", "resume", "--yes"),
            "backfill": self._backfill,
            "vacuum": lambda _: self._command("vacuum", "warehouse", "vacuum", "--retention", "1h"),
            "snapshot": self._snapshot,
            "read_snapshot": self._read_snapshot,
            "raw_gc": lambda _: self._command("raw_gc", "raw", "gc", "--older-than", "1m", "--yes"),
            "ledger_export": self._export,
            "ledger_rebuild": lambda _: self._command("ledger_rebuild", "ledger", "rebuild"),
            "look": self._look,
            "backup": lambda _: self._backup(),
            "restore_older_backup": self._restore,
        }
        assert self._kinds.keys() == OPERATIONS.keys()

    def perform(self, action: Action) -> None:
        try:
            self._kinds[action.kind](random.Random(action.chance))
        except (sqlite3.OperationalError, psycopg.Error, subprocess.CalledProcessError) as error:
            self._report.operation(action.kind, "transient", str(error))  # the database was away from us, too

    def _command(self, kind: str, *arguments: str, **variables: str) -> str | None:
        """Run a command and count its outcome; its output if it was done."""
        try:
            done = self._env.penstock(*arguments, variables=variables)
        except subprocess.TimeoutExpired as error:
            self._report.operation(kind, "crashed", f"no end after {error.timeout} s: {arguments}")
            return None
        outcome = {0: "done", 1: "refused", 2: "refused", 75: "transient"}.get(done.returncode, "crashed")
        if "Traceback (most recent call last)" in done.stderr:
            outcome = "crashed"
        self._report.operation(kind, outcome, f"{' '.join(arguments)}\n{done.stderr}")
        return done.stdout if outcome == "done" else None

    def _state(self) -> StateTables:
        state, _, schema = places(self._env.folder)
        return read_state(state, schema)

    # --- authority --------------------------------------------------------------------------------------------------

    def _demote(self, chance: random.Random) -> None:
        trusted = [row for row in self._state().partition_state if row["status"] == "success"]
        if trusted:
            key = str(key_of(_any(trusted, chance)))
            self._command("demote", "state", "demote", key, "--reason", "the soak distrusts it")

    def _rollback(self, chance: random.Random) -> None:
        """Roll back to any accepted run, including one that must be refused."""
        accepted = [row for row in self._state().partition_attempt if row["outcome"] == "SUCCEEDED"]
        if accepted:
            row = _any(accepted, chance)
            self._command("rollback", "state", "rollback", str(key_of(row)), "--to", row["run_id"])

    def _approve(self, chance: random.Random) -> None:
        held = [
            row
            for row in self._state().partition_attempt
            if row["outcome"] == "FAILED" and row["content_digest"] is not None and row["demoted_at"] is None
        ]
        if held:
            row = _any(held, chance)
            key = str(key_of(row))
            self._command("approve", "state", "approve", key, "--run", row["run_id"], "--reason", "the soak agrees")

    def _backfill(self, chance: random.Random) -> None:
        customer = str(1_000_000_001 + chance.randrange(DAYS))
        size = str(chance.randint(1, 6))
        self._command(
            "backfill", "backfill", "create", "--customer", customer, "--reprocess", "--chunk-size", size, "--yes"
        )

    # --- snapshots --------------------------------------------------------------------------------------------------

    def _snapshot(self, chance: random.Random) -> None:
        name = f"soak_{len(self._snapshots)}_{chance.randrange(10**6)}"
        if self._command("snapshot", "snapshot", name) is not None:
            self._snapshots[name] = {}

    def _read_snapshot(self, chance: random.Random) -> None:
        """A snapshot shows the same rows for ever, without those that were demoted since."""
        if not self._snapshots:
            return
        name, table = chance.choice(sorted(self._snapshots)), chance.choice(TABLES)
        columns = "customer_id,logical_date,_run_id"
        output = self._command(
            "read_snapshot", "read", table, "--as-of", name, "--columns", columns, "--limit", "1000000", "--json"
        )
        if output is None:
            return
        found: Slices = {}
        for row in json.loads(output)["items"]:
            slice_of = row["customer_id"], row["logical_date"]
            run, count = found.get(slice_of, (row["_run_id"], 0))
            if run != row["_run_id"]:
                self._report.violation(f"snapshot {name} of {table} shows two runs of {slice_of}: {run} and {row}")
            found[slice_of] = run, count + 1
        before = self._snapshots[name].setdefault(table, found)
        if changed := {at: (now, before.get(at)) for at, now in found.items() if now != before.get(at)}:
            self._report.violation(f"snapshot {name} of {table} shows other rows than before (now, before): {changed}")

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def _export(self, _chance: random.Random) -> None:
        """Two days later by the clock of the command, so that there is something to export."""
        later = self._env.skewed("+2d")
        self._command("ledger_export", "ledger", "export", "--older-than", "1", "--yes", **later)

    def _look(self, chance: random.Random) -> None:
        known = self._state().partition_state
        why = [["why", str(key_of(_any(known, chance)))]] if known else []
        commands = [["status"], ["failed"], ["missing"], ["runs", "list"], ["backfill", "list"], *why]
        command, offset = chance.choice(commands), chance.choice(("", "", "+2d", "-3h"))
        self._command("look", *command, **(self._env.skewed(offset) if offset else {}))

    def _backup(self) -> None:
        self._backups.take()
        self._report.operation("backup", "done")

    def _restore(self, chance: random.Random) -> None:
        if not self._backups.can_recover:
            self._report.skip("restore_older_backup", "this version has no `penstock recover`")
            return
        done = self._backups.restore_older_backup(chance)
        if done is None:
            self._report.skip("restore_older_backup", "no backup was taken before")
            return
        self._report.operation("restore_older_backup", "done" if done.returncode == 0 else "refused", done.stderr)
        if done.returncode:
            self._report.violation(f"recover from the lake ended with {done.returncode}: {done.stderr[-1000:]}")
        self._snapshots.clear()  # demotions of the time since the backup are not known any more


def _any(rows: list[Row], chance: random.Random) -> Row:
    return chance.choice(sorted(rows, key=lambda row: (str(key_of(row)), row.get("attempt_no", 0))))

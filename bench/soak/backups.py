"""Copies of the state database, and a restore of an older one: the lake is then ahead of the database."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
from contextlib import closing
from functools import cached_property
from pathlib import Path

import psycopg
from psycopg import sql

from bench.soak.environment import Environment


class Backups:
    def __init__(self, env: Environment) -> None:
        self._env = env
        self._taken: list[Path] = []

    @cached_property
    def can_recover(self) -> bool:
        done = self._env.penstock("recover", "--help")
        return done.returncode == 0

    def take(self) -> None:
        """A consistent copy, as a backup job makes it."""
        path = self._env.scratch / f"backup-{len(self._taken)}"
        self.dump(path)
        self._taken.append(path)

    def dump(self, path: Path) -> None:
        if self._env.schema is None:
            with (
                closing(sqlite3.connect(self._env.folder / "state.db", timeout=30)) as source,
                closing(sqlite3.connect(path)) as target,
            ):
                source.backup(target)
        else:
            with path.open("wb") as output:
                subprocess.run([*self._program("pg_dump"), "-n", self._env.schema], stdout=output, check=True)

    def restore_older_backup(self, chance: random.Random) -> subprocess.CompletedProcess[str] | None:
        """Replace the database with an older copy, and run `penstock recover`. No other process may be active. None if
        there is no copy yet."""
        if not self._taken:
            return None
        path = chance.choice(self._taken)
        if self._env.schema is None:
            for old in self._env.folder.glob("state.db*"):
                old.unlink()
            shutil.copy(path, self._env.folder / "state.db")
        else:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(self._env.schema)))
            subprocess.run(
                [*self._program("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", str(path)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        return self._env.penstock("recover", "--from", "lake", "--yes", seconds=300)

    @property
    def _url(self) -> str:
        return self._env.state.replace("+psycopg", "", 1)

    def _program(self, name: str) -> list[str]:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
        found = next((f / name for f in reversed(folders) if (f / name).exists()), None) or shutil.which(name) or name
        return [str(found), "-d", self._url]

"""`penstock.reader`: every object that it returns can be read, and none can write."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

import penstock
from penstock.app.reader import Reader, open_reader
from penstock.control.select import Selection
from penstock.db.engine import Database
from penstock.errors import ActRefused, PenstockError
from penstock.lake.protocol import Lake, LakeRefused
from penstock.partition import new_ulid
from penstock.warehouse.reader import Vouched
from support.builders import BACKENDS
from support.harness import Harness
from support.workspaces import NOW, key

TABLE = "demo.campaign_daily"

# The operations of a consumer, each with a call. A method that is not listed here fails the test: add it on purpose.
QUESTIONS: dict[str, Callable[[Reader], Any]] = {
    "tables": lambda reader: reader.tables,
    "check": lambda reader: reader.check(Selection()),
    "read": lambda reader: reader.read(TABLE),
    "vouched": lambda reader: reader.vouched(TABLE, as_of="then"),
    "sql": lambda reader: reader.sql(f"SELECT count(*) AS n FROM {TABLE}").read_all(),
    "coverage": lambda reader: reader.coverage(TABLE),
    "requested_days": lambda reader: reader.requested_days(TABLE),
    "ready": lambda reader: reader.ready(TABLE),
    "wait_for": lambda reader: reader.wait_for(TABLE, patience=timedelta(0)),
    "partitions": lambda reader: reader.partitions(limit=3),
    "partition": lambda reader: reader.partition(str(key(1))),
    "why": lambda reader: reader.why(str(key(1))),
    "grid": lambda reader: reader.grid("campaign_daily"),
    "settled_until": lambda reader: reader.settled_until(TABLE),
    "snapshots": lambda reader: reader.snapshots(),
    "withdrawn_since": lambda reader: reader.withdrawn_since("then", [TABLE]),
    "raw_runs": lambda reader: reader.raw_runs(key(2)),
    "raw_lines": lambda reader: list(reader.raw_lines(key(2))),
    "close": lambda reader: reader.close(),
}
OF_SPARK = {"session", "spark_sql"}  # they start a JVM, and read through `vouched`


@pytest.fixture(params=BACKENDS)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    state, schema = None, None
    if request.param == "postgresql":
        state, schema = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    made = Harness(tmp_path / "house", state=state, schema=schema)
    made.deliver({key(1): 1, key(2): 2})
    made.publish()
    made.workspace.data.take_snapshot("then", timedelta(days=20_000), actor="set-up")
    made.workspace.context.clock = lambda: NOW + timedelta(hours=1)
    made.workspace.operations.demote(key(1), reason="wrong", actor="ada")
    yield made
    made.workspace.context.database.close()


@pytest.fixture
def reader(house: Harness) -> Iterator[Reader]:
    made = open_reader(house.folder, lambda: NOW)
    yield made
    made.close()


def traces(house: Harness) -> dict[str, str]:
    """Every file of the workspace, and every row of its state, as they are now."""
    files = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in house.folder.rglob("*")
        if path.is_file() and not path.name.startswith("state.db")
    }
    with house.workspace.context.database.snapshot() as connection:
        metadata = sa.MetaData()
        metadata.reflect(connection, schema=house.workspace.context.database.schema)
        rows = {table.name: sorted(map(repr, connection.execute(sa.select(table)))) for table in metadata.sorted_tables}
    return files | {name: repr(found) for name, found in rows.items()}


def test_every_question_is_answered_and_leaves_no_trace(house: Harness, reader: Reader) -> None:
    public = {name for name in dir(reader) if not name.startswith("_")}
    assert public == set(QUESTIONS) | OF_SPARK
    before = traces(house)
    answers = {name: ask(reader) for name, ask in QUESTIONS.items()}
    assert traces(house) == before
    assert answers["sql"].to_pylist() == [{"n": 3}]
    assert answers["read"].arrow().num_rows == 3
    assert answers["withdrawn_since"] == 1
    assert (answers["ready"], len(answers["raw_lines"])) == (False, 3)
    assert answers["why"].headline.startswith("withdrawn")


def handed_out(thing: Any, path: str, seen: dict[int, tuple[str, Any]]) -> None:
    """All objects of ours that public names reach: attributes, and results of methods without arguments."""
    if id(thing) in seen or len(seen) > 5_000 or path.count(".") > 5:  # a part of a table has parts of its own
        return
    seen[id(thing)] = (path, thing)
    if isinstance(thing, list | tuple | set | frozenset):
        for number, one in enumerate(list(thing)[:5]):
            handed_out(one, f"{path}[{number}]", seen)
        return
    if not type(thing).__module__.startswith(("penstock", "sqlalchemy")):
        return
    for name in (name for name in dir(thing) if not name.startswith("_")):
        value = getattr(thing, name)
        if not callable(value):
            handed_out(value, f"{path}.{name}", seen)
        elif inspect.ismethod(value) and name not in ("polars", "pandas") and _asks_nothing(value):
            handed_out(value(), f"{path}.{name}()", seen)


def _asks_nothing(method: Any) -> bool:
    """Whether a method can be called without arguments."""
    parameters = inspect.signature(method).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


def test_nothing_that_is_handed_out_can_write(house: Harness, reader: Reader) -> None:
    seen: dict[int, tuple[str, Any]] = {}
    for name, ask in QUESTIONS.items():
        if name != "close":
            handed_out(ask(reader), name, seen)
    assert any(isinstance(thing, Vouched) for _, thing in seen.values())
    before = traces(house)
    for path, thing in seen.values():
        kind = type(thing)
        assert not isinstance(thing, Database | sa.Engine | sa.Connection), path
        if kind.__module__.startswith("penstock"):
            assert not kind.__name__.endswith(("Store", "Lake", "Publisher", "Workspace", "Sink")), path
    assert traces(house) == before


def test_the_database_and_the_lake_below_refuse_to_write(reader: Reader) -> None:
    workspace = reader._context
    with pytest.raises(ActRefused, match="was opened read-only"):
        workspace.database.transact(lambda connection: connection.execute(sa.text("DELETE FROM worker")))
    with pytest.raises(PenstockError), workspace.database.snapshot() as connection:
        connection.execute(sa.text("UPDATE run SET planned = 7"))
    with pytest.raises(DBAPIError, match=r"readonly|read-only"), workspace.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE run SET planned = 7"))
    writes: list[Callable[[Lake], object]] = [
        lambda lake: lake.create("x", b"x"),
        lambda lake: lake.writer("x"),
        lambda lake: lake.delete(["x"]),
        lambda lake: lake.sync(),
    ]
    for write in writes:
        with pytest.raises(LakeRefused, match="was opened read-only"):
            write(workspace.lake)
    with pytest.raises(ActRefused):
        reader._data.take_snapshot("another")


def test_it_is_typed_and_exported() -> None:
    assert penstock.Reader is Reader
    assert inspect.signature(penstock.reader).return_annotation == "Reader"
    for name in (set(QUESTIONS) | OF_SPARK) - {"tables"}:
        assert inspect.signature(getattr(Reader, name)).return_annotation is not inspect.Signature.empty, name


# --- without write access to the folder -------------------------------------------------------------------------------

_READ = """
import os, penstock, sys
folder, warm, key = sys.argv[1:]
def read(place):
    reader = penstock.reader(place)
    return reader.read("demo.campaign_daily").arrow().num_rows, reader.why(key).headline[:9]
read(warm)  # imports everything: another user may not read the modules
if os.environ["AS"] == "nobody":
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""
_ANSWER = """
print(*read(folder))
try:
    open(folder + "/probe", "w")
except OSError as error:
    print(error.errno)
"""
_READ_IN_TWO_STEPS = """
from penstock.db.engine import Database
from penstock.errors import TransientError
database = Database(f"sqlite:///{folder}/state.db", read_only=True)
try:
    with database.snapshot() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM partition_state").scalar()
        print("reading", flush=True)
        sys.stdin.readline()
except TransientError as error:
    print(error)
print(*read(folder))
"""
_EROFS, _EACCES = "30", "13"


@pytest.fixture
def open_house() -> Iterator[Harness]:
    """In a folder that every user may read, and only its owner may write."""
    with TemporaryDirectory(prefix="penstock-") as made:
        Path(made).chmod(0o755)
        house = Harness(Path(made) / "house")
        house.deliver({key(1): 1, key(2): 2})
        house.publish()
        for path in house.folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        house.folder.chmod(0o755)
        shutil.copytree(house.folder, Path(made) / "warm")
        yield house
        house.workspace.context.database.close()


@contextmanager
def without_write_access(house: Harness, way: str, script: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the script in a process that cannot write to the folder: on a read-only mount of it, or by permission."""
    folder, warm = house.folder, house.folder.with_name("warm")
    is_root = os.geteuid() == 0
    command = [sys.executable, "-c", _READ + script, str(folder), str(warm), str(key(1))]
    if way == "mount":
        mounted = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        if subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, check=False).returncode:
            pytest.skip("this machine lets nobody mount a file system")
        command = ["unshare", "-m", "sh", "-c", f'{mounted} && exec "$@"', "sh", *command]
    elif not is_root:
        folder.chmod(0o555)
    user = "nobody" if way == "permission" and is_root else "self"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "AS": user}
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            folder.chmod(0o755)


def answer_of(house: Harness, way: str, script: str = _ANSWER) -> list[str]:
    with without_write_access(house, way, script) as process:
        words, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return words.splitlines()


WAYS = [("mount", _EROFS), ("permission", _EACCES)]


@pytest.mark.parametrize(("way", "refusal"), WAYS)
def test_a_folder_that_cannot_be_written_to_is_read_while_nobody_writes(
    way: str, refusal: str, open_house: Harness
) -> None:
    open_house.workspace.operations.demote(key(1), reason="wrong", actor="ada")
    open_house.workspace.context.database.close()
    assert {path.name for path in open_house.folder.glob("state.db*")} == {"state.db"}
    assert answer_of(open_house, way) == ["3 withdrawn", refusal]


@pytest.mark.parametrize(("way", "refusal"), WAYS)
def test_a_demotion_that_is_still_in_the_wal_is_seen(way: str, refusal: str, open_house: Harness) -> None:
    with closing(sqlite3.connect(open_house.folder / "state.db")) as writer:  # another process that has it open
        writer.execute("SELECT count(*) FROM partition_state").fetchone()
        open_house.workspace.operations.demote(key(1), reason="wrong", actor="ada")
        assert (open_house.folder / "state.db-wal").stat().st_size > 0
        assert answer_of(open_house, way) == ["3 withdrawn", refusal]


@pytest.mark.parametrize("way", ["mount", "permission"])
@pytest.mark.parametrize("is_in_wal", [True, False])
def test_a_snapshot_without_locks_ends_in_an_error_if_somebody_wrote(
    way: str, is_in_wal: bool, open_house: Harness
) -> None:
    with without_write_access(open_house, way, _READ_IN_TWO_STEPS) as process, ExitStack() as others:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n", process.communicate()
        if is_in_wal:
            writer = others.enter_context(closing(sqlite3.connect(open_house.folder / "state.db")))
            writer.execute("SELECT count(*) FROM partition_state").fetchone()
        open_house.workspace.operations.demote(key(1), reason="wrong", actor="ada")
        assert (open_house.folder / "state.db-wal").exists() is is_in_wal
        words, errors = process.communicate("\n", timeout=60)
    problem, after = words.splitlines()
    assert "was changed while it was read" in problem, errors
    assert f"allow this process to write to {open_house.folder}" in problem
    assert after == "3 withdrawn"


@pytest.mark.parametrize("way", ["mount", "permission"])
def test_a_wal_that_cannot_be_read_names_the_missing_permission(way: str, open_house: Harness) -> None:
    folder = open_house.folder
    with closing(sqlite3.connect(folder / "state.db")) as writer:
        writer.execute("SELECT count(*) FROM partition_state").fetchone()
        open_house.workspace.operations.demote(key(1), reason="wrong", actor="ada")
        kept = (folder / "state.db-wal").read_bytes()
    (folder / "state.db-wal").write_bytes(kept)  # as a copy of the folder has it that left out the other file
    with without_write_access(open_house, way, _ANSWER) as process:
        _, errors = process.communicate(timeout=60)
    assert "penstock.errors.ConfigError" in errors
    assert f"allow it to read state.db* and to write to {folder}" in errors


def test_a_state_file_that_cannot_be_read_names_the_missing_permission(open_house: Harness) -> None:
    (open_house.folder / "state.db").chmod(0o000)
    with without_write_access(open_house, "permission", _ANSWER) as process:
        _, errors = process.communicate(timeout=60)
    assert "cannot be read: allow this process to read the file" in errors

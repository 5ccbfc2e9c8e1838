"""The control loop continues after a database outage, and until it is asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from penstock.control.serve import serve
from penstock.db.engine import Database
from penstock.errors import ConfigError, TransientError
from penstock.pipeline.job_errors import ClusterUnfit
from support import builders, servers
from support.builders import Actors, days

SOON = timedelta(milliseconds=1)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of the loop, with every level."""
    caplog.set_level("DEBUG", "penstock.control.serve")
    return caplog


@pytest.fixture
def own_postgres() -> Iterator[tuple[str, Callable[[], None]]]:
    """A server that the test may restart."""
    with servers.postgres_to_restart() as found:
        yield found


def test_a_database_that_restarts_is_waited_for(
    own_postgres: tuple[str, Callable[[], None]], log: pytest.LogCaptureFixture
) -> None:
    url, restart = own_postgres
    actors = Actors.on(builders.migrated(Database(url, schema="restarted")))
    rounds = 0

    def tick() -> Mapping[str, Any]:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            threading.Thread(target=restart).start()
        if rounds in (2, 3):  # in the middle of a transaction when the server goes away
            actors.database.transact(lambda c: c.exec_driver_sql("SELECT pg_sleep(3)"))
        return {"found": actors.reader.count([days(1, 3)])}

    serve(tick, SOON, threading.Event(), rounds=3)
    assert log.messages.count("round.finished") == 3
    assert "round.failed" in log.messages
    actors.database.close()


def test_pauses_after_failures_grow_and_end_with_a_success(log: pytest.LogCaptureFixture) -> None:
    waited: list[float] = []

    class NoTime(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    stop = NoTime()
    failing = [True] * 7 + [False, True, False]

    def tick() -> Mapping[str, Any]:
        if failing.pop(0):
            raise TransientError("the database is away")
        return {}

    serve(tick, SOON, stop, rounds=2)
    assert [pause for pause in waited if pause >= 1] == [2, 4, 8, 16, 32, 60, 60, 2]
    failed = [record.__dict__["facts"] for record in log.records if record.message == "round.failed"]
    assert failed[0] == {"error": "the database is away", "failures": 1, "retry_in_seconds": 2}


def test_what_waits_is_done_at_once_and_a_stop_is_obeyed() -> None:
    stop = threading.Event()
    rounds = 0

    def tick() -> Mapping[str, Any]:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            stop.set()
        return {"waiting": 1}

    serve(tick, timedelta(hours=1), stop)
    assert rounds == 5


def test_an_error_that_will_not_pass_ends_the_loop() -> None:
    def tick() -> Mapping[str, Any]:
        raise ConfigError("the workspace file is wrong")

    with pytest.raises(ConfigError):
        serve(tick, SOON, threading.Event())


def test_a_cluster_that_worked_is_waited_for_and_one_that_never_did_is_an_error(
    log: pytest.LogCaptureFixture,
) -> None:
    class NoTime(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return False

    outcomes = [True, False, False, True]

    def tick() -> Mapping[str, Any]:
        if not outcomes.pop(0):
            raise ClusterUnfit("no executor was registered")
        return {}

    serve(tick, SOON, NoTime(), rounds=2)
    assert log.messages == ["round.finished", "round.failed", "round.failed", "round.finished"]
    outcomes = [False]
    with pytest.raises(ClusterUnfit):
        serve(tick, SOON, NoTime())

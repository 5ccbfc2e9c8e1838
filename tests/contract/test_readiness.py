"""Readiness: its days, its counts, and how long a command waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.config.loading import load_settings
from penstock.control.requested_days import requested_days
from penstock.control.select import Selection
from penstock.errors import UsageError
from penstock.expected import ExpectedRange, expected_by_day
from penstock.partition import PartitionKey, new_ulid
from penstock.source.registry import hooks_of
from penstock.state.authority import AuthorityStore
from penstock.warehouse import readiness
from support import builders
from support.builders import audit_entry
from support.cli import answer, in_process, penstock
from support.harness import Harness
from support.workspaces import customer_id, key, open_at, write_workspace

TABLE, OTHER = "demo.campaign_daily", "demo.network_daily"
DAYS = ("2024-06-09", "2024-06-10")


@pytest.fixture(params=builders.BACKENDS)
def house(request: pytest.FixtureRequest) -> Iterator[Harness]:
    queries = ("campaign_daily", "network_daily")
    with builders.quick_folder() as folder:
        if request.param == "sqlite":
            made = Harness(Path(folder), queries)
        else:
            url = request.getfixturevalue("postgres_url")
            made = Harness(Path(folder), queries, state=url, schema=f"t_{new_ulid().lower()}")
        yield made
        made.workspace.context.database.close()


def everything(query: str = "campaign_daily") -> dict[PartitionKey, int]:
    return {key(number, day, query): 1 for number in range(1, 10) for day in DAYS}


def demote(house: Harness, partition: PartitionKey) -> None:
    AuthorityStore(house.workspace.context.database, house.now).demote(partition, "wrong", audit_entry())


def test_days_on_which_nothing_is_expected_yet_are_refused_or_not_ready(house: Harness) -> None:
    """The clock of the workspace is at 2024-06-11: the table expects 2024-06-09 and 2024-06-10."""
    ws = house.workspace
    house.deliver(everything())
    house.publish()
    assert ws.ready(TABLE) is True
    expects = r"\(it expects 2024-06-09 to 2024-06-10\)"
    for limits, words in {
        ("2031-01-01", None): "expects nothing from 2031-01-01 on: later days are not over yet",
        (None, "2024-06-08"): "expects nothing until 2024-06-08: its start_date or the active_from of customers is lat",
    }.items():
        for ask in (ws.ready, ws.coverage, lambda *a, **o: ws.wait_for(*a, patience=timedelta(0), **o)):
            with pytest.raises(UsageError, match=f"{words}.*{expects}"):
                ask(TABLE, since=limits[0], until=limits[1])

    # A given day in the future is not ready, and the reason is shown.
    for since, until in (("2024-06-11", "2024-06-12"), ("2024-06-11", "2024-06-11"), ("2031-01-01", "9999-12-31")):
        assert ws.ready(TABLE, since=since, until=until) is False
        [day] = ws.wait_for(TABLE, since=since, until=until, patience=timedelta(0))
        assert (str(day.day), day.expected, day.available, day.not_over) == (since, 9, 0, 9)
        asked = ws.readiness.requested_days(TABLE, since=since, until=until)
        days = since if since == until else f"{since} to {until}"
        assert (asked.last, asked.notes) == (None, [f"{days}: not over yet, so nothing is there"])
    assert ws.ready(TABLE, date="2024-06-11") is False

    # A range that reaches beyond the last day that is over is not ready, by any rule; the first such day is listed.
    assert ws.ready(TABLE, until="2024-06-11") is False
    assert ws.ready(TABLE, until="2024-06-11", require="any") is False
    *_, beyond = ws.coverage(TABLE, until="2030-01-01")
    assert (beyond.day, beyond.expected, beyond.available, beyond.not_over) == (date(2024, 6, 11), 9, 0, 9)
    assert [day.available for day in ws.wait_for(TABLE, until="2024-06-11", patience=timedelta(0))] == [9, 9, 0]
    [note] = ws.readiness.requested_days(TABLE, until="2030-01-01").notes
    assert note.startswith("2024-06-11 to 2030-01-01: not over yet")
    assert "the last day that is over is 2024-06-10" in note

    # A range that begins before the table does is ready, and the clipping is shown.
    assert ws.ready(TABLE, since="2020-01-01", until="2024-06-10") is True
    asked = ws.readiness.requested_days(TABLE, since="2020-01-01", until="2024-06-10")
    assert (asked.first, asked.last) == (date(2024, 6, 9), date(2024, 6, 10))
    assert asked.notes == ["nothing is expected before 2024-06-09, where start_date and active_from begin"]
    assert ws.readiness.requested_days(TABLE, since="2024-06-09").notes == []


def test_readiness_is_counted_by_the_database_in_a_few_statements(house: Harness) -> None:
    """However many partitions there are; keys are asked for only where something is absent."""
    ws = house.workspace
    house.deliver(everything())
    house.publish()
    asked: list[str] = []
    for ask, most in ((ws.ready, 1), (ws.coverage, 1)):
        asked.clear()
        with noted(asked):
            ask(TABLE)
        assert len([text for text in asked if "warehouse_pointer" in text]) == most
        assert not any("expected" in text for text in asked), "days were unfolded although nothing is absent"
    demote(house, key(3))
    asked.clear()
    with noted(asked):
        [first, second] = ws.coverage(TABLE)
    assert (first.absent, second.absent) == ((key(3),), ())
    assert len([text for text in asked if "warehouse_pointer" in text]) == 2


@contextmanager
def noted(found: list[str]) -> Iterator[None]:
    """Collects the queries to the database."""

    def note(_c: Any, _cursor: Any, statement: str, _values: Any, _context: Any, _many: bool) -> None:
        found.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_waiting_for_several_tables_takes_the_patience_once(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither table gets ready: ten minutes are ten minutes, and both are asked until they are over."""
    clock = Clock()
    monkeypatch.setattr(readiness, "time", clock)
    days = house.workspace.wait_for([TABLE, OTHER], patience=timedelta(minutes=10))
    assert [(day.table, day.available) for day in days] == [(name, 0) for name in (TABLE, OTHER) for _ in range(2)]
    assert clock.now == pytest.approx(600)

    # Both become ready while it waits: that ends it, however much patience is left.
    clock.now = 0

    def publish() -> None:
        house.deliver(everything())
        house.publish()
        house.deliver(everything("network_daily"))
        house.publish()

    clock.after(30, publish)
    days = house.workspace.wait_for([TABLE, OTHER], patience=timedelta(minutes=10))
    assert {day.available for day in days} == {9}
    assert 30 <= clock.now < 60


class Clock:
    """A clock that advances only during sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plan: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._plan.append((self.now + seconds, act))

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at, act in [one for one in self._plan if one[0] <= self.now]:
            self._plan.remove((at, act))
            act()


def test_a_model_that_is_made_per_date_has_no_partitions_of_a_customer(tmp_path: Path) -> None:
    sql = "SELECT logical_date, count(*) AS n FROM demo.campaign_daily GROUP BY logical_date"
    spend: dict[str, Any] = {"code": sql, "depends_on": ["demo.campaign_daily"], "per": "date"}
    ws = open_at(write_workspace(tmp_path, customers=2, models={"spend": spend}))
    mine = [customer_id(1), customer_id(2)]
    for names in (mine[:1], mine):
        for limits in ({}, {"date": "2024-06-09"}, {"since": "2024-06-09", "until": "2031-01-01"}):
            with pytest.raises(UsageError, match=f"^models.spend has no partitions of {', '.join(names)}$"):
                ws.ready("models.spend", customers=names, **limits)
    assert ws.ready("models.spend") is False
    assert ws.ready("demo.campaign_daily", customers=mine) is False
    ws.context.database.close()
    refused = in_process("ready", "models.spend", "--customer", mine[0], workspace=tmp_path)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr == f"penstock: models.spend has no partitions of {mine[0]}\n"


def test_the_command_refuses_empty_ranges_and_says_what_it_clipped(tmp_path: Path) -> None:
    """The command's clock is today's: the table expects 2024-06-09 to yesterday, and nothing is published."""
    Harness(tmp_path).workspace.context.database.close()
    refused = penstock("ready", TABLE, "--since", "2131-01-01", workspace=tmp_path)
    assert refused.returncode == 2
    assert "expects nothing from 2131-01-01 on: later days are not over yet (it expects 2024-06-09 to" in refused.stderr
    named = answer("ready", TABLE, "--date", "2131-01-01", "--wait", "1s", workspace=tmp_path, code=1)
    assert named["tables"][0]["last_expected"] is None
    assert named["tables"][0]["notes"] == ["2131-01-01: not over yet, so nothing is there"]
    asked = ("--since", "2024-06-01", "--until", "2131-01-01", "--customer", key().customer_id)
    [found] = answer("ready", TABLE, *asked, workspace=tmp_path, code=1)["tables"]
    assert (found["since"], found["until"], found["first_expected"]) == ("2024-06-01", "2131-01-01", "2024-06-09")
    last = date.fromisoformat(found["last_expected"])
    assert found["notes"][0] == "nothing is expected before 2024-06-09, where start_date and active_from begin"
    assert found["notes"][1].startswith(f"{last + timedelta(days=1)} to 2131-01-01: not over yet")
    assert (found["days"][-1]["date"], found["days"][-1]["not_over"]) == (str(last + timedelta(days=1)), 1)
    assert found["days"][0]["not_over"] == 0


def test_a_day_that_is_over_for_some_accounts_counts_the_others_too(tmp_path: Path) -> None:
    """With given days, all are required; without, only the due ones."""
    (tmp_path / "penstock.yaml").write_text(
        """
tenant: acme
workspace: ads
state: sqlite:///state.db
lake: ./lake
customers:
  - {id: "1", time_zone: Asia/Tokyo}
  - {id: "2", time_zone: America/Los_Angeles}
  - {id: "3", time_zone: Asia/Tokyo, active_to: 2024-06-05}
sources: {demo: {kind: demo}}
queries:
  campaign_daily:
    source: demo
    schema_version: v1
    start_date: 2024-06-01
    fields: [{name: campaign_id, type: long}]
"""
    )
    settings = load_settings(tmp_path, {}, hooks_of)
    now = datetime(2024, 6, 10, 18, tzinfo=UTC)  # in Tokyo the 10th is over, in Los Angeles it is not

    def asked(**days: date) -> Any:
        return requested_days(settings, TABLE, Selection(queries=("campaign_daily",), **days), now)  # type: ignore[arg-type]

    assert expected_by_day(asked().ranges)[TABLE, date(2024, 6, 10)] == 1
    named = asked(since=date(2024, 6, 10), until=date(2024, 6, 10))
    assert expected_by_day(named.ranges) == {(TABLE, date(2024, 6, 10)): 2}
    assert expected_by_day(named.due) == {(TABLE, date(2024, 6, 10)): 1}
    assert named.notes == ["2024-06-10 is not over yet for all accounts"]
    assert asked(until=date(2024, 6, 9)).notes == []
    only = Selection(customers=("3",), queries=("campaign_daily",), until=date(2024, 6, 9))
    ended = requested_days(settings, TABLE, only, now)
    assert ended.notes == ["nothing is expected after 2024-06-05, where active_to ends"]
    with pytest.raises(UsageError, match="the active_to of its customers is earlier"):
        requested_days(settings, TABLE, Selection(customers=("3",), since=date(2024, 6, 6)), now)
    assert asked(until=date(9999, 12, 31)).ranges[0].last == date(2024, 6, 11)  # not one range for all of eternity


@pytest.mark.parametrize("begin", [7, 8, 9, 20])
def test_a_day_of_a_customer_that_begins_later_is_not_ready(tmp_path: Path, begin: int) -> None:
    """Between the end of one customer and the beginning of the next nothing is expected."""
    (tmp_path / "penstock.yaml").write_text(
        f"""
tenant: acme
workspace: ads
state: sqlite:///state.db
lake: ./lake
customers:
  - {{id: "1", active_to: 2024-06-05}}
  - {{id: "2", active_from: 2024-06-{begin:02}}}
sources: {{demo: {{kind: demo}}}}
queries:
  campaign_daily:
    source: demo
    schema_version: v1
    start_date: 2024-06-01
    fields: [{{name: campaign_id, type: long}}]
"""
    )
    settings, now = load_settings(tmp_path, {}, hooks_of), datetime(2024, 6, 6, 12, tzinfo=UTC)

    def asked(last: date) -> tuple[int, list[str]]:
        found = requested_days(settings, TABLE, Selection(until=last), now)
        assert (found.last, found.first, len(expected_by_day(found.due))) == (date(2024, 6, 5), date(2024, 6, 1), 5)
        return len(expected_by_day(found.ranges)), found.notes

    over = "nothing is expected after 2024-06-05, where active_to ends"
    assert asked(date(2024, 6, 5)) == (5, [])
    assert asked(date(2024, 6, 6)) == asked(date(2024, 6, begin - 1)) == (5, [over])
    words = "not over yet, so nothing is there; the last day that is over is 2024-06-05"
    assert asked(date(2024, 6, begin)) == (6, [f"2024-06-{begin:02}: {words}"])
    assert asked(date(9999, 12, 31)) == (6, [f"2024-06-{begin:02} to 9999-12-31: {words}"])


def test_expected_partitions_are_counted_by_day_without_naming_them() -> None:
    def span(customer: str, first: int, last: int, query: str = "a") -> ExpectedRange:
        return ExpectedRange("demo", customer, query, date(2024, 6, first), date(2024, 6, last))

    found = expected_by_day([span("1", 1, 3), span("2", 3, 4), span("3", 9, 9), span("4", 5, 4), span("1", 2, 2, "b")])
    assert {(table, day.day): n for (table, day), n in found.items()} == {
        ("demo.a", 1): 1,
        ("demo.a", 2): 1,
        ("demo.a", 3): 2,
        ("demo.a", 4): 1,
        ("demo.a", 9): 1,
        ("demo.b", 2): 1,
    }

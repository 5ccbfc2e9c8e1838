"""Laws of lateness: of deadlines across daylight-saving changes, of the expected completion, and of its history."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.completion import run_end, usual_completion
from penstock.control.deadlines import Deadline, day_end, local_instant
from penstock.control.lateness import DayFacts, Missing, MissingCause, Punctuality, outlook, punctuality
from penstock.projections.fact import Fact
from penstock.projections.publications import COUNTED, completions, first_publications, publications
from penstock.state.missing import RunProgress
from penstock.warehouse.readiness import Rule

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Pacific/Auckland",
)
DAYS = st.dates(date(2005, 1, 1), date(2035, 12, 31))
TIMES = st.builds(time, st.integers(0, 23), st.integers(0, 59))
NOW = datetime(2024, 6, 11, 6, tzinfo=UTC)
MOMENTS = st.none() | st.integers(-300, 300).map(lambda minutes: NOW + timedelta(minutes=minutes))
ORDER = list(Punctuality)


@given(DAYS, TIMES, st.sampled_from(ZONES), st.integers(1, 3))
def test_a_deadline_is_the_first_instant_at_which_the_local_clock_has_reached_it(
    day: date, at: time, zone: str, days: int
) -> None:
    found = Deadline(at, zone, Rule("all"), days).moment(day)
    wanted = datetime.combine(day + timedelta(days=days), at)
    there = ZoneInfo(zone)
    assert found.tzinfo is UTC
    assert found.astimezone(there).replace(tzinfo=None) >= wanted
    before = (found - timedelta(seconds=1)).astimezone(there).replace(tzinfo=None)
    assert before < wanted, "an earlier instant has reached it already"


@given(DAYS, TIMES, st.sampled_from(ZONES))
def test_the_deadline_of_a_later_day_is_not_earlier(day: date, at: time, zone: str) -> None:
    deadline = Deadline(at, zone, Rule("all"))
    assert deadline.moment(day) <= deadline.moment(day + timedelta(days=1))
    assert day_end(day, zone) <= deadline.moment(day)


@pytest.mark.parametrize(
    ("local", "zone", "found"),
    [
        ("2024-03-31T02:30", "Europe/Berlin", "2024-03-31T01:00"),  # skipped: the first instant after the gap
        ("2024-03-31T03:00", "Europe/Berlin", "2024-03-31T01:00"),
        ("2024-03-31T01:59", "Europe/Berlin", "2024-03-31T00:59"),
        ("2024-10-27T02:30", "Europe/Berlin", "2024-10-27T00:30"),  # occurs twice: the first time
        ("2024-10-27T03:00", "Europe/Berlin", "2024-10-27T02:00"),
        ("2024-10-06T02:10", "Australia/Lord_Howe", "2024-10-05T15:30"),  # a gap of half an hour
        ("2011-12-30T09:00", "Pacific/Apia", "2011-12-30T10:00"),  # a day that does not exist there
    ],
)
def test_skipped_and_repeated_local_times(local: str, zone: str, found: str) -> None:
    assert local_instant(datetime.fromisoformat(local), zone) == datetime.fromisoformat(found + "+00:00")


def test_the_newest_day_is_yesterday_in_the_time_zone_of_the_deadline() -> None:
    berlin = Deadline(time(9), "Europe/Berlin", Rule("all"))
    assert berlin.newest_day(datetime(2024, 6, 10, 21, 59, tzinfo=UTC)) == date(2024, 6, 9)
    assert berlin.newest_day(datetime(2024, 6, 10, 22, 0, tzinfo=UTC)) == date(2024, 6, 10)
    assert replace(berlin, days=2).newest_day(datetime(2024, 6, 10, 22, 0, tzinfo=UTC)) == date(2024, 6, 9)


@st.composite
def days(draw: st.DrawFn) -> DayFacts:
    causes = draw(st.lists(st.sampled_from(MissingCause), unique=True, max_size=6))
    missing = [Missing(cause, draw(st.integers(1, 4)), draw(MOMENTS)) for cause in causes]
    available = draw(st.integers(0, 3))
    required = draw(st.integers(0, available + sum(one.count for one in missing)))
    return DayFacts(required, available, missing, (), draw(MOMENTS), draw(MOMENTS), draw(st.booleans()))


def with_one_more(facts: DayFacts, at: int) -> DayFacts:
    """The same day after one of its missing partitions was published."""
    one = facts.missing[at]
    rest = [replace(one, count=one.count - 1)] if one.count > 1 else []
    missing = [*facts.missing[:at], *rest, *facts.missing[at + 1 :]]
    return replace(facts, available=facts.available + 1, missing=missing)


@given(days(), st.data(), st.integers(-300, 300))
def test_more_partitions_never_make_a_day_later(facts: DayFacts, data: st.DataObject, minutes: int) -> None:
    if not facts.missing:
        return
    better = with_one_more(facts, data.draw(st.integers(0, len(facts.missing) - 1)))
    deadline = NOW + timedelta(minutes=minutes)
    before, after = punctuality(facts, deadline, NOW), punctuality(better, deadline, NOW)
    assert ORDER.index(after) <= ORDER.index(before)
    first, second = outlook(facts), outlook(better)
    if before is not Punctuality.READY and first.at is not None and second.at is not None:
        assert second.at <= first.at
    assert second.at_risk <= first.at_risk or after is Punctuality.READY


@given(days(), st.integers(-300, 300))
def test_the_state_depends_on_the_arguments_alone(facts: DayFacts, minutes: int) -> None:
    """The order of the causes is no argument; a later deadline is never worse."""
    deadline = NOW + timedelta(minutes=minutes)
    found = punctuality(facts, deadline, NOW)
    assert punctuality(replace(facts, missing=tuple(reversed(facts.missing))), deadline, NOW) is found
    assert ORDER.index(punctuality(facts, deadline + timedelta(hours=1), NOW)) <= ORDER.index(found)
    assert (found is Punctuality.READY) == (facts.available >= facts.required)
    if found is Punctuality.LATE:
        assert deadline <= NOW


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 500), st.integers(0, 500))
def test_a_run_with_more_verdicts_ends_no_later(planned: int, closed: int, minutes: int, more: int) -> None:
    started, now = NOW - timedelta(minutes=minutes), NOW
    end = run_end(RunProgress(planned, closed, started), now)
    further = run_end(RunProgress(planned, closed + more, started), now)
    assert (end is None) == (closed == 0 or minutes == 0)
    if end is not None and further is not None:
        assert now <= further <= end


@given(st.dictionaries(st.integers(1, 60), st.integers(0, 600), max_size=20), st.integers(0, 700))
def test_the_usual_completion_is_one_that_occurred_and_is_ahead(history: dict[int, int], minutes: int) -> None:
    day, end = date(2024, 6, 10), datetime(2024, 6, 11, tzinfo=UTC)
    now = end + timedelta(minutes=minutes)
    past = {day - timedelta(days=ago): timedelta(minutes=took) for ago, took in history.items()}
    found = usual_completion(day, end, past, now)
    if found.at is not None:
        assert found.at > now
        assert found.at - end in past.values()
        assert not found.overdue
    else:
        assert found.overdue == bool(past)
    assert usual_completion(day, end, {**past, day: timedelta(0)}, now) == found, "the day itself is no history"


def test_days_of_the_same_weekday_count_first() -> None:
    monday, end = date(2024, 6, 10), datetime(2024, 6, 11, tzinfo=UTC)
    past = {monday - timedelta(days=ago): timedelta(hours=1) for ago in range(1, 28) if ago % 7}
    slow = {monday - timedelta(weeks=weeks): timedelta(hours=5) for weeks in (1, 2, 3)}
    assert usual_completion(monday, end, past | slow, end).at == end + timedelta(hours=5)
    assert usual_completion(monday, end, past, end).at == end + timedelta(hours=1)


def published(position: int, customer: int, day: int, minutes: int) -> Fact:
    key = f"demo/{customer}/daily/2024-06-{day:02}"
    at = datetime(2024, 6, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    return Fact(position, f"{position:026}", "PartitionPublished", 1, at, "run", {"partition_key": key})


PUBLISHED = st.lists(
    st.builds(published, st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 80_000)), max_size=25
)


@given(PUBLISHED, st.randoms(use_true_random=False), st.integers(0, 25), st.integers(1, 4))
def test_completions_do_not_depend_on_order_repetition_or_pages(
    facts: list[Fact], random: object, cut: int, needed: int
) -> None:
    wanted = {date(2024, 6, day): needed for day in range(1, 4)}
    at_once = completions(first_publications([publications(facts)]), "demo", "daily", wanted)
    shuffled = [*facts, *facts[:cut]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    parts = [publications(shuffled[:cut]), publications(shuffled[cut:])]
    merged = first_publications([first_publications(parts[:1]), parts[1]])
    assert completions(merged, "demo", "daily", wanted) == at_once == reference(facts, needed)
    assert isinstance(merged, pa.Table)


def reference(facts: list[Fact], needed: int) -> dict[date, datetime]:
    """The k-th smallest of the first publications of each partition."""
    first: dict[tuple[str, str], datetime] = {}
    for fact in facts:
        _, customer, _, day = fact.payload["partition_key"].split("/")
        first[day, customer] = min(first.get((day, customer), fact.occurred_at), fact.occurred_at)
    found = {}
    for day in {day for day, _ in first}:
        end = datetime.combine(date.fromisoformat(day), time.min, UTC) + timedelta(days=1)
        times = sorted(at for (of, _), at in first.items() if of == day and at < end + COUNTED)
        if len(times) >= needed:
            found[date.fromisoformat(day)] = times[needed - 1]
    return found

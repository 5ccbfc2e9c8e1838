"""Fetching within the limits of a source: claims before a job, returns after it, and a wait for a share of the rate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

import pytest

from penstock.config.settings import SourceSettings
from penstock.errors import ErrorClass, SparkFailed
from penstock.flow import quota as limits_module
from penstock.flow.quota import RequestLimits, fitting, spans_of
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.pipeline.extract import Extracted
from penstock.pipeline.source_requests import Extraction
from penstock.state.quota import QuotaStore, SourceQuota
from penstock.state.shares import ShareStore
from support import builders
from support.builders import Actors

FIRST = date(2024, 6, 1)
RUN = new_run_id()


@pytest.fixture
def actors() -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        database = builders.migrated(builders.open_database("sqlite", folder, str))
        yield Actors.on(database)
        database.close()


@dataclass
class Site:
    """A source that needs `pages` requests for a span, and the jobs that were started for it."""

    actors: Actors
    rate: str | list[str]
    pages: int = 1
    reserve: float = 0.2
    jobs: list[tuple[int, int]] = field(default_factory=list)  # claimed requests and spans
    sent: int = 0
    said: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def settings(self) -> SourceSettings:
        return SourceSettings.model_validate({"name": "demo", "kind": "demo", "rate": self.rate})

    def quota(self) -> SourceQuota:
        return QuotaStore(self.actors.database).read("demo", self.settings().quotas)

    def fetch(
        self,
        attempts: Sequence[AttemptKey],
        old: Sequence[AttemptKey] = (),
        job: Callable[[Extraction, Sequence[AttemptKey]], list[Extracted]] | None = None,
    ) -> list[Extracted]:
        limits = RequestLimits(
            QuotaStore(self.actors.database),
            ShareStore(self.actors.database),
            self.actors.token,
            self.reserve,
            0.0,
            self.said.append,
            self.stopped,
        )
        folder = str(self.actors.database.url.database).rpartition("/")[0]
        work = Extraction(f"{folder}/lake", RUN, self.settings(), {}, {})
        return limits.fetch(work, attempts, {attempt.partition for attempt in old}, job or self.job)

    def job(self, work: Extraction, attempts: Sequence[AttemptKey]) -> list[Extracted]:
        assert work.claim is not None
        spans = spans_of(attempts, lambda attempt: attempt.partition, {})
        self.jobs.append((work.claim.requests, len(spans)))
        left, found = work.claim.requests, []
        for span in spans:
            used = min(left, self.pages)
            left -= used
            self.sent += used
            result = fetched if used == self.pages else refused
            found += [result(attempt, used if number == 0 else 0) for number, attempt in enumerate(span)]
        return found


def fetched(attempt: AttemptKey, requests: int = 0) -> Extracted:
    return Extracted(attempt, 1, "digest", 10, None, None, None, requests=requests)


def refused(attempt: AttemptKey, requests: int = 0) -> Extracted:
    return Extracted(attempt, None, None, None, ErrorClass.QUOTA, "short", None, unsent=True, requests=requests)


def attempts(customers: int, days: int = 1) -> list[AttemptKey]:
    return [
        AttemptKey(PartitionKey("demo", str(1000 + number), "daily", FIRST + timedelta(day)), RUN)
        for number in range(customers)
        for day in range(days)
    ]


def test_a_job_gets_what_is_left_and_the_rest_waits_for_the_next_window(actors: Actors) -> None:
    site = Site(actors, "5/d")
    found = site.fetch(attempts(12))
    good, bad = [item for item in found if item.ok], [item for item in found if not item.ok]
    assert (len(good), len(bad), site.sent) == (5, 7, 5)
    assert site.quota().left() == 0
    seconds = (site.quota().renews_at() - site.quota().now).total_seconds()
    for item in bad:
        assert item.error_class is ErrorClass.QUOTA
        assert item.retry_after is not None
        assert abs(item.retry_after - seconds) < 60
        assert (item.error_message or "").startswith("quota of demo is used up until ")


def test_unused_requests_are_returned_after_the_job(actors: Actors) -> None:
    site = Site(actors, "1000/d")
    site.fetch(attempts(10))
    assert site.jobs == [(25, 10)]
    assert (site.quota().left(), site.quota().windows[0].used) == (990, 10)


def test_days_of_a_customer_are_one_request(actors: Actors) -> None:
    site = Site(actors, "2/d")
    assert [item.ok for item in site.fetch(attempts(2, days=31))] == [True] * 62
    assert site.sent == 2


def test_pages_are_paid_from_the_claim_and_a_claim_that_was_too_small_grows(actors: Actors) -> None:
    site = Site(actors, "1000/d", pages=40)
    assert all(item.ok for item in site.fetch(attempts(3)))
    assert [claimed for claimed, _ in site.jobs][:3] == [11, 29, 101]
    assert site.quota().windows[0].used == site.sent
    site.jobs.clear()
    assert all(item.ok for item in site.fetch(attempts(3)))  # the past tells how many a span needs
    assert len(site.jobs) == 1


def test_a_span_that_needs_more_than_the_window_has_stops_at_its_end(actors: Actors) -> None:
    site = Site(actors, "30/d", pages=40)
    found = site.fetch(attempts(1))
    assert [item.error_class for item in found] == [ErrorClass.QUOTA]
    assert site.sent == 30


def test_a_job_that_breaks_returns_nothing(actors: Actors) -> None:
    site = Site(actors, "100/d")

    def broken(work: Extraction, some: Sequence[AttemptKey]) -> list[Extracted]:
        raise SparkFailed("a worker died")

    with pytest.raises(SparkFailed):
        site.fetch(attempts(10), job=broken)
    assert site.quota().left() == 75


def test_tasks_that_never_get_their_part_do_not_use_up_the_quota(actors: Actors) -> None:
    site = Site(actors, "1000000/d")

    def unlucky(work: Extraction, some: Sequence[AttemptKey]) -> list[Extracted]:
        assert work.claim is not None
        site.jobs.append((work.claim.requests, len(some)))
        return [refused(attempt) for attempt in some]

    found = site.fetch(attempts(10), job=unlucky)
    assert {(item.error_class, item.retry_after) for item in found} == {(ErrorClass.QUOTA, 60.0)}
    assert len(site.jobs) == 5
    assert site.quota().left() == 1_000_000


def test_old_data_leaves_the_reserve(actors: Actors) -> None:
    site = Site(actors, "10/d", reserve=0.3)
    old = attempts(20)
    assert sum(item.ok for item in site.fetch(old, old)) == 7
    refusals = {item.error_message for item in site.fetch(old, old)}
    assert [str(text).partition(" until")[0] for text in refusals] == [
        "quota of demo for backfills and history is used up"
    ]
    assert sum(item.ok for item in site.fetch(attempts(20))) == 3


def test_fresh_data_is_fetched_before_old_data(actors: Actors) -> None:
    site = Site(actors, "10/d")
    every = attempts(12)
    old, fresh = every[:6], every[6:]
    done = {item.attempt for item in site.fetch(every, old) if item.ok}
    assert done == {*fresh, *old[:2]}


def test_a_source_without_limits_is_fetched_at_once(actors: Actors) -> None:
    site, seen = Site(actors, []), []
    site.rate = []
    settings = SourceSettings.model_validate({"name": "demo", "kind": "demo"})
    limits = RequestLimits(
        QuotaStore(actors.database), ShareStore(actors.database), actors.token, 0.2, 0.0, site.said.append
    )
    work = Extraction("lake", RUN, settings, {}, {})
    limits.fetch(work, attempts(3), (), lambda limited, some: seen.append((limited, len(some))) or [])  # type: ignore[func-returns-value]
    assert seen == [(work, 3)]


def test_a_worker_waits_for_a_share_and_says_who_has_it(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_POLL_SECONDS", 0.01)
    shares, other = ShareStore(actors.database), actors.workers.register()
    site, rates = Site(actors, ["8/s", "100/d"]), []
    assert shares.take("demo", 8.0, other) == 8.0

    def job(work: Extraction, some: Sequence[AttemptKey]) -> list[Extracted]:
        rates.append(work.rate)
        return site.job(work, some)

    worker = threading.Thread(target=site.fetch, args=(attempts(1),), kwargs={"job": job})
    worker.start()
    while not site.said:
        assert worker.is_alive()
    assert rates == []
    assert site.said[0].startswith("waiting for a share of the rate of demo, which is in use: ")
    shares.release("demo", other)
    worker.join(30)
    assert rates == [4.0]
    assert [share.per_second for share in shares.live("demo")] == [0.0, 0.0]


def test_a_run_that_is_stopped_does_not_wait_for_its_share(actors: Actors) -> None:
    ShareStore(actors.database).take("demo", 8.0, actors.workers.register())
    site = Site(actors, "8/s")
    site.stopped.set()
    with pytest.raises(KeyboardInterrupt):
        site.fetch(attempts(1))


def test_a_share_is_released_when_the_job_breaks(actors: Actors) -> None:
    site = Site(actors, "8/s")

    def broken(work: Extraction, some: Sequence[AttemptKey]) -> list[Extracted]:
        raise SparkFailed("a worker died")

    with pytest.raises(SparkFailed):
        site.fetch(attempts(1), job=broken)
    assert [share.per_second for share in ShareStore(actors.database).live("demo")] == [0.0]


def test_what_fits_into_a_quota_is_issued_fresh_data_first(actors: Actors) -> None:
    site = Site(actors, "10/d")
    every = [attempt.partition for attempt in attempts(12, days=2)]
    old = {key for key in every if key.customer_id < "1006"}

    def kept(share: float) -> set[str]:
        chosen = fitting(every, site.quota(), share, lambda key: key, lambda key: key in old, {})
        return {key.customer_id for key in chosen}

    assert kept(0.2) == {str(number) for number in (1000, 1001, *range(1006, 1012))}
    assert kept(0.9) == {str(number) for number in range(1006, 1012)}
    site.fetch(attempts(9))
    assert kept(0.2) == {"1006"}
    site.fetch(attempts(1))
    assert kept(0.2) == set()


def test_spans_are_those_of_extraction() -> None:
    every = [attempt.partition for attempt in attempts(2, days=40)]
    found = spans_of(every[::-1], lambda key: key, {})
    assert sorted(len(span) for span in found) == [9, 9, 31, 31]
    assert found[0][-1] == every[-1]


def test_where_each_day_is_a_request_each_day_is_a_span() -> None:
    every = [attempt.partition for attempt in attempts(2, days=40)]
    assert [len(span) for span in spans_of(every, lambda key: key, {"daily": 1})] == [1] * 80

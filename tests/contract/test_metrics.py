"""Metrics: they state what the database holds, counters never decrease, and no label grows with customers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from penstock.app import Workspace
from penstock.control.breaker import observed
from penstock.control.rescue import rescue
from penstock.control.select import Selection
from penstock.ledger.read import LedgerReader
from penstock.ledger.segments import SegmentReader
from penstock.lifecycle import MAX_LOSSES
from penstock.observe.metrics import FAMILIES, Family
from penstock.partition import PartitionKey, new_ulid
from penstock.state.attempt_totals import AttemptTotals, ClosedAs, ClosedAttempts
from penstock.state.records import Observation
from support import builders
from support.api import bearer, problem, served
from support.builders import Actors
from support.workspaces import NOW, customer_id, key, open_at, write_workspace

TABLE = "demo.campaign_daily"
LABELS = {"table", "status", "reason", "outcome", "error_class", "worker", "state", "source", "window", "backfill_id",
          "progress", "kind", "version", "tenant", "workspace"}  # fmt: skip


@pytest.fixture(params=builders.BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    """Two customers and two days; one of the four partitions fails its checks. Runs need no Spark."""
    state, name = "sqlite:///state.db", None
    if request.param == "postgresql":
        state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    faults = [{"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-09"}]
    opened = open_at(
        write_workspace(tmp_path, customers=2, faults=faults, state=state, schema=name, driver_partitions=32)
    )
    yield opened
    opened.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Workspace]:
    """Two customers and two days on SQLite."""
    opened = open_at(write_workspace(tmp_path, customers=2, driver_partitions=32))
    yield opened
    opened.close()


def values(workspace: Workspace, name: str) -> dict[str, float]:
    """The values of a metric by its label values, joined by spaces."""
    return {
        " ".join(sample.labels): sample.value
        for sample in workspace.metrics.samples()
        if sample.family.name == f"penstock_{name}"
    }


def present(workspace: Workspace, name: str) -> dict[str, float]:
    """The same without zeros."""
    return {labels: value for labels, value in values(workspace, name).items() if value}


def run_all(workspace: Workspace) -> None:
    workspace.orders.create("run", Selection(), actor="kim")
    assert workspace.orders.execute_next(workspace.context.workers.register(control_loop=True)) is not None


def test_metrics_state_what_a_run_left(workspace: Workspace) -> None:
    assert present(workspace, "partitions") == {f"{TABLE} never_materialized": 4}
    assert values(workspace, "oldest_due_age_seconds") == {TABLE: 36 * 3600}  # two days ago at midnight, now noon
    assert "last_run_duration_seconds" not in {sample.family.name for sample in workspace.metrics.samples()}
    run_all(workspace)
    assert present(workspace, "partitions") == {f"{TABLE} materialized": 3, f"{TABLE} never_materialized": 1}
    assert values(workspace, "oldest_due_age_seconds") == {TABLE: 0}  # the failed partition is not due: it failed
    assert present(workspace, "attempts_total") == {f"{TABLE} succeeded none": 3, f"{TABLE} failed data": 1}
    assert present(workspace, "finished_runs") == {"failed": 1}
    assert present(workspace, "orders") == {"succeeded": 1}
    assert values(workspace, "last_run_finished_timestamp_seconds") == {"": NOW.timestamp()}
    assert values(workspace, "last_publication_timestamp_seconds") == {"": NOW.timestamp()}
    assert values(workspace, "publish_lag_seconds") == {TABLE: 0}
    assert values(workspace, "projection_lag_events") == {"": 0}
    assert values(workspace, "open_runs") == {"alive": 0, "lost": 0}
    assert values(workspace, "workers")["control_loop alive"] == 1


def test_every_metric_has_a_sample_when_everything_happened(workspace: Workspace) -> None:
    run_all(workspace)
    loop = workspace.context.workers.register(control_loop=True)
    assert values(workspace, "control_loop_round_timestamp_seconds") == {}
    workspace.rounds.tick(lambda: pytest.fail("nothing is due"), loop)
    [ended] = values(workspace, "control_loop_round_timestamp_seconds").values()
    assert abs(ended - time.time()) < 600  # by the clock of the database
    plan = workspace.backfills.plan(Selection(customers=customer_id(1)), actor="ada")
    workspace.backfills.create(plan, Selection(customers=customer_id(1)))
    seen = {sample.family.name for sample in workspace.metrics.samples()}
    assert seen == {family.name for family in FAMILIES if "quota" not in family.name}  # the source has no limit
    total = plan.total
    assert values(workspace, "backfill_partitions") == {
        f"{plan.backfill_id} finished": 0,
        f"{plan.backfill_id} claimed": 0,
        f"{plan.backfill_id} waiting": total,
    }
    workspace.backfills.cancel(plan.backfill_id, actor="ada")
    assert values(workspace, "backfill_partitions") == {}


def test_a_dead_worker_is_visible_until_its_attempts_are_closed(workspace: Workspace) -> None:
    actors = Actors.on(workspace.context.database)
    actors.clock.now = NOW - timedelta(minutes=5)
    contract = workspace.context.contracts["campaign_daily"]
    workspace.context.control.store_contracts(
        [(contract.fingerprint, "demo", contract.query_name, "v1", contract.body())]
    )
    actors.issue(key(1), key(2))
    assert present(workspace, "open_attempts") == {f"{TABLE} alive": 2}
    assert values(workspace, "oldest_open_attempt_age_seconds") == {TABLE: 300}
    actors.expire(actors.token)
    assert present(workspace, "open_attempts") == {f"{TABLE} lost": 2}
    assert values(workspace, "workers")["other lost"] == 1
    assert values(workspace, "lost_attempts_total") == {"": 0}
    for round_ in range(1, MAX_LOSSES + 1):
        rescue(workspace.context.workers, workspace.context.control, workspace.context.validators)
        assert present(workspace, "open_attempts") == {}
        assert values(workspace, "lost_attempts_total") == {"": 2 * round_}
        token = workspace.context.workers.register()
        actors.issue(key(1), key(2), token=token)
        actors.expire(token)
    assert present(workspace, "attempts_total") == {
        f"{TABLE} cancelled internal": 2 * (MAX_LOSSES - 1),
        f"{TABLE} failed internal": 2,
    }
    again = open_at(workspace.settings.root)
    assert values(again, "lost_attempts_total") == {"": 2 * MAX_LOSSES}  # counted from the rows
    again.close()


def totals_of(actors: Actors) -> AttemptTotals:
    class NoSegments(SegmentReader):
        def __init__(self) -> None: ...

    return AttemptTotals(LedgerReader(actors.database, NoSegments()))


def read(totals: AttemptTotals, actors: Actors) -> ClosedAttempts:
    with actors.database.snapshot() as connection:
        return totals.read(connection)


@pytest.fixture(params=builders.BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        yield Actors.on(builders.migrated(database))
        database.close()


def test_kept_totals_are_those_of_the_rows(actors: Actors) -> None:
    kept = totals_of(actors)
    assert read(kept, actors).counts == {}
    acts: list[Callable[[PartitionKey], object]] = [actors.accept, actors.reject, actors.cancel]
    for day, act in enumerate([*acts, actors.accept, actors.accept], start=1):
        act(builders.key(day))
        assert read(kept, actors) == read(totals_of(actors), actors)
    assert read(kept, actors).counts == {
        ClosedAs(TABLE, "SUCCEEDED", None): 3,
        ClosedAs(TABLE, "FAILED", "data"): 1,
        ClosedAs(TABLE, "CANCELLED", "quota"): 1,
    }


@pytest.mark.parametrize("actors", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_an_attempt_that_a_long_transaction_overlaps_is_counted_once(actors: Actors) -> None:
    """Its event is not settled before the other transaction ends."""
    before = totals_of(actors)
    read(before, actors)
    with actors.database.engine.begin() as held:
        held.execute(sa.text("SELECT pg_current_xact_id()"))
        actors.accept(builders.key(1))
        during = totals_of(actors)
        assert sum(read(during, actors).counts.values()) == 0
        assert sum(read(before, actors).counts.values()) == 0
    for totals in (before, during, totals_of(actors)):
        assert sum(read(totals, actors).counts.values()) == 1


def test_counters_do_not_decrease_when_events_are_exported(workspace: Workspace) -> None:
    assert present(workspace, "attempts_total") == {}  # the events of the run are exported before the next reading
    run_all(workspace)
    counted = {f"{TABLE} succeeded none": 3, f"{TABLE} failed data": 1}
    later = open_at(workspace.settings.root, NOW + timedelta(days=400))
    exported = later.ledger.export(1, actor="ada")
    assert exported["events"] > 0
    assert present(workspace, "attempts_total") == counted
    assert present(later, "attempts_total") == counted
    later.close()


def test_pauses_and_failures_are_not_due(small: Workspace) -> None:
    assert values(small, "oldest_due_age_seconds") == {TABLE: 36 * 3600}
    small.operations.pause(Selection(customers=customer_id(1)), actor="ada", reason="moves")
    assert values(small, "oldest_due_age_seconds") == {TABLE: 36 * 3600}  # the other customer
    small.operations.pause(Selection(keys=(key(2, "2024-06-09"),)), actor="ada", reason="moves")
    assert values(small, "oldest_due_age_seconds") == {TABLE: 12 * 3600}
    small.operations.pause(Selection(), actor="ada", reason="moves")
    assert values(small, "oldest_due_age_seconds") == {TABLE: 0}


def test_a_breaker_and_a_quota_are_shown(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path)
    file = folder / "penstock.yaml"
    file.write_text(file.read_text().replace("    kind: demo\n", "    kind: demo\n    rate: [100/h, 1000/d]\n"))
    opened = open_at(folder, datetime.now(UTC))
    assert values(opened, "quota_requests_left") == {"demo hour": 100, "demo day": 1000}
    opened.context.quotas.claim("demo", opened.settings.sources["demo"].quotas, 1, at_most=7)
    assert values(opened, "quota_requests_left") == {"demo hour": 93, "demo day": 993}
    assert values(opened, "quota_requests_budget") == {"demo hour": 100, "demo day": 1000}
    assert values(opened, "source_breaker_open") == {"demo": 0}
    refused = Observation(refused=3, message="renew the credentials")
    opened.context.breakers.change("demo", lambda breaker: observed(breaker, refused, opened.context.now()))
    assert values(opened, "source_breaker_open") == {"demo": 1}
    opened.close()


def test_lost_projections_hide_only_the_status(small: Workspace) -> None:
    run_all(small)
    assert values(small, "status_readable") == {"": 1}
    for file in (small.settings.root / "lake" / "projections").rglob("*.*"):
        file.unlink()
    again = open_at(small.settings.root)
    assert values(again, "status_readable") == {"": 0}
    assert values(again, "partitions") == {}
    assert present(again, "attempts_total") == {f"{TABLE} succeeded none": 4}
    again.close()


def test_no_label_grows_with_customers_or_partitions(tmp_path: Path) -> None:
    sizes = {}
    for customers in (2, 40):
        opened = open_at(write_workspace(tmp_path / str(customers), customers=customers, driver_partitions=100))
        run_all(opened)
        samples = opened.metrics.samples()
        sizes[customers] = len(samples)
        texts = {text for sample in samples for text in sample.labels}
        assert not [text for text in texts if re.search(r"\d{10}|\d{4}-\d\d-\d\d", text)]
        opened.close()
    assert sizes[2] == sizes[40]
    assert {label for family in FAMILIES for label in family.labels} == LABELS


def test_the_format_follows_the_accept_header(small: Workspace) -> None:
    run_all(small)
    with served(small) as client:
        text = client.get("/metrics")
        assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert text.headers["cache-control"] == "no-store"
        accepted = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
        modern = client.get("/metrics", headers=accepted)
        assert modern.headers["content-type"].startswith("application/openmetrics-text")
    declared: dict[str, Family] = {family.name: family for family in FAMILIES}
    for families in (list(parse_text(text.text)), list(parse_openmetrics(modern.text))):  # type: ignore[no-untyped-call]
        own = [family for family in families if family.name.startswith("penstock_")]
        assert {"process_resident_memory_bytes", "python_info"} <= {
            sample.name for family in families for sample in family.samples
        }
        for family in own:
            for sample in family.samples:
                assert set(sample.labels) == set(declared[sample.name].labels)
                assert family.documentation == declared[sample.name].help
        assert ({"table": TABLE, "outcome": "succeeded", "error_class": "none"}, 4.0) in [
            (sample.labels, sample.value) for family in own for sample in family.samples
        ]


def test_a_scrape_needs_the_token_of_a_viewer_if_there_are_tokens(small: Workspace) -> None:
    with served(small) as client:
        assert client.get("/metrics").status_code == 200  # loopback without tokens
        token = small.tokens.create("prometheus", "viewer", actor="ada")[1]
        problem(client.get("/metrics"), 401)
        assert client.get("/metrics", headers=bearer(token)).status_code == 200
    with served(small, read_only=True) as client:
        assert client.get("/metrics", headers=bearer(token)).status_code == 200


def test_exported_names_follow_the_conventions() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"penstock_[a-z][a-z_]*", family.name), family
        assert family.name.endswith("_total") == (family.type == "counter"), family
        assert family.name.endswith("_info") == (family.type == "info"), family
        assert family.help.endswith("."), family
        times = [
            unit for unit in ("age", "lag", "duration", "timestamp", "heartbeat") if unit in family.name.split("_")
        ]
        assert not times or family.name.endswith(("_seconds", "_events")), family
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)

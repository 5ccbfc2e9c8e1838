"""Derived partitions with a demoted input run: found from demoted attempts, never stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.db import schema
from penstock.digests import comparable
from penstock.errors import ActRefused
from penstock.expected import ExpectedRange
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.state.authority import AuthorityStore
from penstock.state.closing import OVERTAKEN
from penstock.state.garbage import GarbageStore
from penstock.state.inputs import InputReader, InputStore, Trusted
from penstock.state.recheck import FailedRecheck
from penstock.state.records import Consumed
from penstock.warehouse.heads import TableHead, heads, heads_and_slices
from penstock.warehouse.readiness import coverage, day_counts, usable
from penstock.warehouse.served import read_served
from penstock.warehouse.snapshots import Snapshot, as_of, withdrawn_since
from penstock.warehouse.withdrawn import demoted_inputs, keys_by_table, not_ready, trusted_inputs, withdrawn_inputs
from support import builders
from support.builders import BACKENDS, NOW, Actors, accepted, audit_entry, key

DAY = date(2024, 6, 1)
SLICE = frozenset({(DAY, "all")})
NOTHING: frozenset[tuple[date, str]] = frozenset()


@pytest.fixture(params=BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        url = lambda: str(request.getfixturevalue("postgres_url"))  # noqa: E731
        database = builders.migrated(builders.open_database(request.param, folder, url))
        yield Actors.on(database)
        database.close()


def model(name: str = "spend", customer: str = "all") -> PartitionKey:
    return PartitionKey("models", customer, name, DAY)


def made(actors: Actors, partition: PartitionKey, *inputs: AttemptKey, content: str = "") -> AttemptKey:
    """A run of a derived partition with these input runs, accepted and published."""
    attempt = actors.issue_one(partition)
    used = [Consumed(one.partition, one.run_id, f"content-{one.run_id}") for one in inputs]
    InputStore(actors.database).record({attempt: used})
    verdict = accepted(attempt, actors.token)
    verdict = replace(verdict, content_digest=content) if content else verdict
    assert actors.validator.judge([verdict]).applied == [attempt]
    publish(actors, partition)
    return attempt


def publish(actors: Actors, partition: PartitionKey) -> None:
    """The pointer follows authority, in a table of its own for each asset."""
    state, table = actors.reader.state(partition), f"{partition.asset}.v1"
    assert state is not None
    name = schema.warehouse_table.c.table_name
    with actors.database.snapshot() as connection:
        known = connection.scalar(sa.select(name).where(name == table))
    if known is None:
        facts = {"source": partition.source, "query_name": partition.query_name, "schema_version": "v1"}
        actors.execute(sa.insert(schema.warehouse_table).values(table_name=table, **facts, location="w", version=1))
    pointer, columns = schema.warehouse_pointer, builders.columns(partition)
    run: dict[str, Any] = {"run_id": state.current_run_id, "schema_version": "v1", "table_name": table}
    run |= {"record_count": 10, "loaded_at": actors.clock.now}
    actors.execute(sa.delete(pointer).where(*builders.is_key(pointer, partition)))
    actors.execute(sa.insert(pointer).values(**columns, **run, table_version=1, available=True))
    actors.execute(sa.insert(schema.load_record).values(**columns, **run))


def fetched(actors: Actors, number: int = 1) -> AttemptKey:
    attempt = actors.accept(key(1, customer=str(1_000_000_000 + number)))
    publish(actors, attempt.partition)
    return attempt


def demote(actors: Actors, partition: PartitionKey) -> None:
    assert AuthorityStore(actors.database, actors.clock).demote(partition, "wrong", audit_entry())


def withdrawn(actors: Actors) -> set[PartitionKey]:
    return {one.key for one in trusted_inputs(actors.database)}


def span(partition: PartitionKey) -> ExpectedRange:
    return ExpectedRange(partition.source, partition.customer_id, partition.query_name, DAY, DAY)


def is_ready(actors: Actors, partition: PartitionKey) -> bool:
    [day] = coverage(actors.database, [span(partition)])
    assert set(day.withdrawn_inputs) <= set(day.absent)
    [count] = day_counts(actors.database, [span(partition)])
    assert (count.expected, count.available) == (day.expected, day.available)
    return not day.absent


def chain(actors: Actors) -> tuple[AttemptKey, AttemptKey, AttemptKey]:
    """A fetched run, a model of it and of another, and a model of the model."""
    wrong, right = fetched(actors, 1), fetched(actors, 2)
    spend = made(actors, model("spend"), wrong, right)
    return wrong, spend, made(actors, model("total"), spend)


def test_a_demotion_reaches_what_was_made_from_the_run_and_what_was_made_from_that(actors: Actors) -> None:
    wrong, spend, total = chain(actors)
    other = made(actors, model("other"), fetched(actors, 3))
    assert withdrawn(actors) == set()
    demote(actors, wrong.partition)
    assert withdrawn(actors) == {spend.partition, total.partition}
    assert [is_ready(actors, one.partition) for one in (spend, total, other)] == [False, False, True]
    assert usable(actors.database, [span(one.partition) for one in (spend, other)]) == {other.partition}
    with actors.database.snapshot() as connection:
        [found] = demoted_inputs(connection, total.partition, total.run_id)
    assert (found.key, found.run_id, found.demoted_at) == (wrong.partition, wrong.run_id, NOW)


def test_a_recheck_that_demotes_reaches_models_too_and_a_replacement_does_not(actors: Actors) -> None:
    wrong, spend, total = chain(actors)
    actors.accept(key(1, customer="1000000002"))
    assert withdrawn(actors) == set()
    assert actors.validator.withdraw([FailedRecheck(wrong, "clicks is negative")]) == [wrong.partition]
    assert withdrawn(actors) == {spend.partition, total.partition}


def test_only_a_new_run_makes_the_partition_ready_again(actors: Actors) -> None:
    """Also when the input comes back with the same content: the recorded input is the demoted run."""
    wrong, spend, total = chain(actors)
    demote(actors, wrong.partition)
    again = fetched(actors, 1)
    assert not is_ready(actors, spend.partition)
    fresh = made(actors, spend.partition, again, content=f"content-{spend.run_id}")
    assert withdrawn(actors) == {total.partition}
    assert (is_ready(actors, spend.partition), is_ready(actors, total.partition)) == (True, False)
    made(actors, total.partition, fresh)
    assert withdrawn(actors) == set()
    assert is_ready(actors, total.partition)


def test_a_partition_is_not_ready_while_readers_get_the_old_run(actors: Actors) -> None:
    wrong, spend, _ = chain(actors)
    demote(actors, wrong.partition)
    attempt = actors.issue_one(spend.partition)
    actors.validator.judge([accepted(attempt, actors.token)])
    assert spend.partition not in withdrawn(actors)
    assert not is_ready(actors, spend.partition)
    publish(actors, spend.partition)
    assert is_ready(actors, spend.partition)


def test_nothing_new_is_made_from_it(actors: Actors) -> None:
    wrong, spend, _ = chain(actors)
    table, days = "models.spend", {"models.spend": (DAY, DAY)}
    assert set(read_served(actors.database, days).runs) == {(table, DAY)}
    demote(actors, wrong.partition)
    found = read_served(actors.database, days)
    assert found.runs == {}
    assert found.heads[table][0].exceptions == SLICE
    assert spend.partition == model("spend")


def test_readers_are_warned_and_rows_are_hidden_only_if_the_model_is_configured_so(actors: Actors) -> None:
    wrong, _, _ = chain(actors)
    demote(actors, wrong.partition)

    def seen(hiding: tuple[str, ...]) -> TableHead:
        [head] = heads(actors.database, "models", "spend", hiding)
        return head

    assert (seen(()).exceptions, seen(()).withdrawn_inputs) == (NOTHING, SLICE)
    assert (seen(("spend",)).exceptions, seen(("spend",)).hidden_inputs) == (SLICE, SLICE)
    assert seen(("total",)).exceptions == NOTHING
    for hiding, slices in (((), SLICE), (("spend",), NOTHING)):
        assert heads_and_slices(actors.database, "models", "spend", DAY, DAY, hiding)[1] == slices


def test_a_snapshot_names_what_was_made_from_a_demoted_run_and_hides_it_where_the_model_says_so(
    actors: Actors,
) -> None:
    wrong, spend, _ = chain(actors)
    tables = tuple(("models.spend", head) for head in heads(actors.database, "models", "spend", ()))
    taken = Snapshot("before", NOW + timedelta(hours=1), NOW + timedelta(days=1), tables)
    assert Snapshot.loads(taken.dumps()) == taken
    [before] = as_of(actors.database, taken, "models", "spend", ())
    actors.clock.now += timedelta(hours=2)
    demote(actors, wrong.partition)
    [shown] = as_of(actors.database, taken, "models", "spend", ())
    [hidden] = as_of(actors.database, taken, "models", "spend", ("spend",))
    assert (before.withdrawn_inputs, shown.withdrawn_inputs) == (NOTHING, SLICE)
    assert not shown.withdrawn
    assert set(hidden.withdrawn) == {(DAY, "all", str(spend.run_id))}
    assert hidden.hidden_inputs == SLICE

    late = Snapshot("after", actors.clock.now, NOW + timedelta(days=1), tables)  # before the demotion, by its content
    [named] = heads(actors.database, "models", "spend", ())
    kept = replace(late, tables=(("models.spend", named),))
    made(actors, spend.partition, fetched(actors, 1))
    [still] = as_of(actors.database, Snapshot.loads(kept.dumps()), "models", "spend", ())
    assert still.withdrawn_inputs == SLICE


def test_no_act_returns_to_a_run_that_was_made_from_a_demoted_one(actors: Actors) -> None:
    wrong, spend, _ = chain(actors)
    demote(actors, wrong.partition)
    made(actors, spend.partition, fetched(actors, 1))
    before = builders.everything(actors.database)
    with pytest.raises(ActRefused, match=f"was derived from run {wrong.run_id} of {wrong.partition}"):
        AuthorityStore(actors.database, actors.clock).rollback(spend.partition, spend.run_id, audit_entry())
    assert builders.everything(actors.database) == before


def test_the_search_begins_with_the_demoted_attempts(actors: Actors) -> None:
    """However many inputs are recorded: without a demotion none of them is read."""
    if actors.database.dialect != "sqlite":
        pytest.skip("PostgreSQL plans by its statistics")
    from penstock.warehouse import withdrawn as module

    chain(actors)
    with actors.database.snapshot() as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN " + module._WITHDRAWN.replace(":query_name", "'spend'")
        ).all()
    order = [row.detail.split()[1] for row in plan if row.detail.startswith(("SCAN", "SEARCH"))]
    assert order.index("d") < order.index("i")


def test_garbage_collection_keeps_what_trusted_models_were_made_from(actors: Actors) -> None:
    garbage = GarbageStore(actors.database, actors.clock)
    later = NOW + timedelta(days=1)
    used = fetched(actors, 1)
    spend = made(actors, model("spend"), used)
    fetched(actors, 1)  # another run is trusted and served now, the model was derived from the older one
    actors.clock.now = later
    assert garbage.find(later) == []
    assert garbage.mark([used], later, audit_entry(command="raw gc")) == 0
    newer = fetched(actors, 1)
    again = made(actors, model("spend"), newer)
    assert spend in garbage.find(later)
    assert used in garbage.find(later), "only a run that nothing trusted was made from"
    assert newer not in garbage.find(later + timedelta(days=1))
    assert again not in garbage.find(later + timedelta(days=1))
    assert garbage.mark([used], later, audit_entry(command="raw gc")) == 1
    assert garbage.find(later) == [one for one in garbage.find(later) if one != used]


def test_each_run_derived_from_a_demoted_one_is_reported_with_its_own_times(actors: Actors) -> None:
    hour = timedelta(hours=1)
    first, second = fetched(actors, 1), fetched(actors, 2)
    old = made(actors, model("spend"), first, second)
    unpublished = actors.issue_one(model("total"))
    InputStore(actors.database).record({unpublished: [Consumed(old.partition, old.run_id, f"content-{old.run_id}")]})
    assert actors.validator.judge([accepted(unpublished, actors.token)]).applied == [unpublished]
    actors.clock.now = NOW + hour
    new = made(actors, model("spend"), second)
    for hours, wrong in ((2, second), (3, first)):
        actors.clock.now = NOW + hours * hour
        demote(actors, wrong.partition)
    with actors.database.snapshot() as connection:
        found = {one.run_id: tuple(one)[2:] for one in withdrawn_inputs(connection)}
        only = [one.run_id for one in withdrawn_inputs(connection, "total")]
        roots = [one.run_id for one in demoted_inputs(connection, old.partition, old.run_id)]
        fewer = [one.run_id for one in demoted_inputs(connection, new.partition, new.run_id)]
    assert found == {
        old.run_id: (NOW + 2 * hour, NOW + 3 * hour, NOW, None, False),
        new.run_id: (NOW + 2 * hour, NOW + 2 * hour, NOW + hour, "models.spend.v1", True),
        unpublished.run_id: (NOW + 2 * hour, NOW + 3 * hour, None, None, True),
    }
    assert only == [unpublished.run_id]
    assert (roots, fewer) == ([second.run_id, first.run_id], [second.run_id])


def test_only_models_that_serve_or_will_serve_withdrawn_rows_are_not_ready(actors: Actors) -> None:
    wrong, spend, total = chain(actors)
    other = made(actors, model("other"), fetched(actors, 3))
    demote(actors, wrong.partition)
    spans = {one: span(one.partition) for one in (wrong, spend, total, other)}
    made(actors, total.partition, fetched(actors, 4))
    with actors.database.snapshot() as connection:
        assert not_ready(connection, [spans[spend], spans[total], spans[other]]) == {spend.partition}
        assert not_ready(connection, [spans[spend]]) == {spend.partition}
        assert not_ready(connection, [spans[other], spans[total]]) == set()
        assert not_ready(connection, [spans[wrong]]) == set()
        assert keys_by_table(connection, "models", "spend") == {"models.spend.v1": set(SLICE)}
        assert keys_by_table(connection, "models", "total") == {}
        assert keys_by_table(connection, "demo", "spend") == {}


def test_what_is_about_to_be_replaced_is_not_used_and_nothing_else_is_left_out(actors: Actors) -> None:
    one, two = fetched(actors, 1), fetched(actors, 2)
    for day in (2, 3):
        publish(actors, actors.accept(key(day, customer="1000000002")).partition)
    publish(actors, actors.accept(key(1, customer="1000000002", query="network_daily")).partition)
    demote(actors, fetched(actors, 3).partition)
    actors.accept(one.partition)
    table, last = "demo.campaign_daily", date(2024, 6, 2)
    found = read_served(actors.database, {table: (DAY, last)})
    customer = two.partition.customer_id
    assert found.runs[table, DAY] == {customer: (two.run_id, f"content-{two.run_id}")}
    assert found.served_in == {(table, day): {customer: f"{table}.v1"} for day in (DAY, last)}
    assert found.runs.keys() == found.served_in.keys()
    [head] = found.heads[table]
    assert head.exceptions == {(DAY, one.partition.customer_id), (DAY, "1000000003")}


def test_runs_are_withdrawn_since_a_moment_if_they_were_demoted_after_it(actors: Actors) -> None:
    wrong = fetched(actors, 1)
    fetched(actors, 2)
    demote(actors, wrong.partition)
    found = frozenset({(DAY, wrong.partition.customer_id, wrong.run_id)})
    instant = timedelta(microseconds=1)
    assert withdrawn_since(actors.database, "demo", "campaign_daily", NOW - instant) == found
    assert withdrawn_since(actors.database, "demo", "campaign_daily", NOW) == frozenset()
    assert withdrawn_since(actors.database, "demo", "network_daily", NOW - instant) == frozenset()
    assert withdrawn_since(actors.database, "other", "campaign_daily", NOW - instant) == frozenset()


def test_usable_is_what_readers_see_of_the_authoritative_run_on_the_days_that_are_asked_for(actors: Actors) -> None:
    one, two = fetched(actors, 1), fetched(actors, 2)
    replaced, unpublished = fetched(actors, 3), actors.accept(key(1, customer="1000000004"))
    demote(actors, fetched(actors, 5).partition)
    actors.accept(replaced.partition)
    later = [actors.accept(key(day)) for day in (2, 3, 4)]
    network = actors.accept(key(1, query="network_daily"))
    for attempt in (*later, network):
        publish(actors, attempt.partition)

    def on(first: int, last: int, query: str = "campaign_daily") -> ExpectedRange:
        return builders.days(first, last, query=query)

    def found(*ranges: ExpectedRange) -> set[PartitionKey]:
        return usable(actors.database, ranges)

    assert unpublished.partition not in found(on(1, 1))
    assert found(on(1, 1)) == {one.partition, two.partition}, "of whichever customer"
    assert found(on(2, 3)) == {key(2), key(3)}
    assert found(on(3, 3), on(2, 2)) == {key(2), key(3)}
    assert found(on(1, 1), on(1, 1, "network_daily")) == {one.partition, two.partition, network.partition}
    assert found(on(5, 9)) == set()


# --- inputs of a derived attempt -------------------------------------------------------------------------------------


def derivation(actors: Actors, partition: PartitionKey, *inputs: AttemptKey) -> AttemptKey:
    """An open attempt of a derived partition that reads these runs."""
    attempt = actors.issue_one(partition)
    used = [Consumed(one.partition, one.run_id, f"content-{one.run_id}") for one in inputs]
    assert InputStore(actors.database).record({attempt: used}) == set()
    return attempt


@pytest.mark.parametrize("why", ["replaced", "demoted", "requeued"])
def test_only_what_was_made_from_an_untrusted_run_is_overtaken(actors: Actors, why: str) -> None:
    """In one batch: two models with an input run that is not trusted any more (one of them of another worker), a model
    with trusted inputs, one that was rejected anyway, and a fetched partition."""
    old, right = fetched(actors, 1), fetched(actors, 2)
    stale, foreign = derivation(actors, model("a"), old, right), derivation(actors, model("b"), old)
    good, wrong = derivation(actors, model("c"), right), derivation(actors, model("d"), old)
    plain = actors.issue_one(key(5))
    if why == "replaced":
        fetched(actors, 1)
    else:
        demote(actors, old.partition)
    if why == "requeued":
        actors.control.requeue([old.partition], audit_entry())
    stranger = actors.workers.register()
    verdicts = [accepted(one, actors.token) for one in (stale, good, plain)]
    ruling = actors.validator.judge(
        [*verdicts, accepted(foreign, stranger), builders.rejected(wrong, actors.token, "clicks is negative")]
    )
    assert set(ruling.applied) == {stale, good, plain, wrong}
    assert ruling.overtaken == (stale,)
    assert [one.attempt for one in ruling.refused] == [foreign]
    [closed] = actors.reader.attempts(model("a"))
    assert (closed.outcome, closed.error_message, closed.error_class) == ("CANCELLED", OVERTAKEN, "transient")
    assert (closed.record_count, closed.payload_digest, closed.payload_bytes, closed.content_digest) == (None,) * 4
    assert actors.reader.state(model("a")) is None
    [failed] = actors.reader.attempts(model("d"))
    assert (failed.outcome, failed.error_message) == ("FAILED", "clicks is negative")
    told = {event["partition_key"]: (event["outcome"], event["consumed"]) for event in actors.events("TaskFinished")}
    assert told[str(model("a"))] == ("CANCELLED", 0)
    assert told[str(model("c"))] == ("SUCCEEDED", 1)
    assert told[str(key(5))] == ("SUCCEEDED", 0)
    cancelled = derivation(actors, model("e"), right)
    assert actors.control.cancel([builders.cancelled(cancelled, actors.token)]).overtaken == ()


def test_a_repeated_acceptance_is_a_repetition_whatever_became_of_its_inputs(actors: Actors) -> None:
    old = fetched(actors, 1)
    spend = made(actors, model("spend"), old)
    demote(actors, old.partition)
    ruling = actors.validator.judge([accepted(spend, actors.token)])
    assert (ruling.repeated, ruling.overtaken) == ([spend], ())


def test_the_first_record_of_the_inputs_of_an_attempt_stays(actors: Actors) -> None:
    one, two = fetched(actors, 1), fetched(actors, 2)
    attempt, other = derivation(actors, model("a"), one), derivation(actors, model("b"), one, two)
    before = actors.rows(schema.attempt_input)
    store = InputStore(actors.database)

    def used(*inputs: AttemptKey) -> list[Consumed]:
        return [Consumed(i.partition, i.run_id, f"content-{i.run_id}") for i in inputs]

    newer = fetched(actors, 1)
    assert store.record({attempt: used(one), other: used(two, one)}) == set(), "the same again"
    assert store.record({attempt: used(newer), other: used(one, two)}) == {attempt}, "another run"
    assert store.record({attempt: used(one, two), other: used(one)}) == {attempt, other}, "more, or less"
    assert store.record({}) == set()
    assert actors.rows(schema.attempt_input) == before
    actors.control.cancel([builders.cancelled(attempt, actors.token)])
    closed = made(actors, model("c"))
    assert store.record({closed: used(one)}) == set()
    assert actors.rows(schema.attempt_input) == before, "nothing is written about a closed attempt"


def test_the_inputs_of_trusted_runs_are_returned_for_the_requested_partitions(actors: Actors) -> None:
    one, two = fetched(actors, 1), fetched(actors, 2)
    made(actors, model("spend", "1"), two)
    made(actors, model("spend", "1"), one, two)
    made(actors, model("spend", "2"), one)
    made(actors, model("spend", "3"))
    made(actors, model("other", "1"), two)
    made(actors, model("spend", "4"), one)
    demote(actors, model("spend", "4"))
    later = model("spend", "1")._replace(logical_date=DAY + timedelta(days=1))
    made(actors, later, one)
    keys = [model("spend", customer) for customer in ("1", "3", "4")]
    found = InputReader(actors.database).of_trusted("models.spend", keys)
    both = {a.partition: comparable(f"content-{a.run_id}") for a in (one, two)}
    assert found == {
        model("spend", "1"): Trusted(builders.FINGERPRINT, both),
        model("spend", "3"): Trusted(builders.FINGERPRINT, {}),
    }
    assert set(InputReader(actors.database).of_trusted("models.spend", [keys[0], later])) == {keys[0], later}


# --- garbage ---------------------------------------------------------------------------------------------------------


def test_a_raw_run_is_garbage_when_nothing_refers_to_it_in_this_partition(actors: Actors) -> None:
    """One run has a partition of every day, each with its own state; protection on one day protects no other."""
    trusted, served, loaded, free, marked, opened, young, model_input, twin = (key(day) for day in range(1, 10))
    first, plan = new_run_id(), actors.plan
    everyday = [trusted, served, loaded, free, marked, opened, model_input, twin]
    issued, _ = actors.try_to_issue(*plan(*everyday), run_id=first)
    verdicts = [accepted(item.attempt, actors.token) for item in issued if item.attempt.partition != opened]
    actors.validator.judge(verdicts)
    made(actors, model("spend"), AttemptKey(model_input, first))
    publish(actors, served)
    again, _ = actors.try_to_issue(*plan(*(k for k in everyday if k not in (trusted, opened))))
    actors.clock.now = later = NOW + timedelta(days=1)
    actors.validator.judge([accepted(item.attempt, actors.token) for item in again])
    batch: dict[str, Any] = {"batch_id": "B", "status": "prepared", "lease_token": "t", "prepared_at": NOW, "body": {}}
    actors.execute(sa.insert(schema.load_batch).values(**batch))
    item: dict[str, Any] = {"act": "load", "run_id": first, "schema_version": "v1", "table_name": "t"}
    item |= {"record_count": 1, "authority_version": 1, "batch_id": "B"}
    actors.execute(sa.insert(schema.load_batch_item).values(**builders.columns(loaded), **item))
    garbage, entry = GarbageStore(actors.database, actors.clock), audit_entry(command="raw gc")
    assert garbage.mark([AttemptKey(marked, first)], later, entry) == 1
    late = actors.reject(young)
    assert garbage.find(NOW) == [], "not closed before"
    free_ones = [AttemptKey(free, first), AttemptKey(twin, first)]
    assert garbage.find(later) == free_ones
    assert garbage.find(later, 1) == free_ones[:1]
    assert late in garbage.find(later + timedelta(seconds=1))
    every = [AttemptKey(k, first) for k in everyday if k != twin]
    assert garbage.mark([*every, late], later, entry) == 1
    gone = {(r["logical_date"].day, r["run_id"]) for r in actors.rows(schema.partition_attempt) if r["raw_deleted_at"]}
    assert gone == {(free.logical_date.day, first), (marked.logical_date.day, first)}
    assert garbage.find(later) == [AttemptKey(twin, first)]
    assert [line["affected"] for line in actors.reader.audit()][:2] == [1, 1]
    assert garbage.marked_since(later) == [AttemptKey(free, first), AttemptKey(marked, first)]
    assert garbage.marked_since(later + timedelta(seconds=1)) == []


def test_the_inputs_of_a_model_are_kept_while_that_run_of_it_is_the_current_one(actors: Actors) -> None:
    """Two models have the same input run; only one of them has a newer run."""
    later = NOW + timedelta(days=1)
    used = fetched(actors, 1)
    made(actors, model("a"), used)
    made(actors, model("b"), used)
    newer = fetched(actors, 1)
    made(actors, model("a"), newer)
    garbage = GarbageStore(actors.database, actors.clock)
    assert used not in garbage.find(later)
    made(actors, model("b"), newer)
    assert used in garbage.find(later)

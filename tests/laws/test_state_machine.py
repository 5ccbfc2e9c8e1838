"""In any order of operations, the real store agrees with a dictionary, and the invariants hold."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.control.rescue import Rescued, rescue
from penstock.db import schema
from penstock.db.engine import Database
from penstock.lifecycle import MAX_LOSSES
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.state.records import Accepted, Cancelled, ClosingResult, Refused, Rejected
from support import builders
from support.builders import Actors, accepted, cancelled, key, planned, rejected

KEYS = tuple(key(day) for day in (1, 2, 3))
Closing = Accepted | Rejected | Cancelled

some_keys = st.lists(st.sampled_from(KEYS), min_size=1, unique=True)
a_worker = st.integers(0, 1)
a_closing = st.sampled_from(["accept", "reject", "cancel", "lose"])


@dataclass
class Tried:
    attempt: AttemptKey
    token: str
    lost: int
    outcome: str | None = None
    said: Closing | None = None


@dataclass
class Known:
    """The model's state of one partition."""

    status: str = "pending"
    run: str | None = None
    verdicts: int = 0
    acceptances: int = 0
    attempts: list[Tried] = field(default_factory=list)

    @property
    def open(self) -> Tried | None:
        return next((tried for tried in self.attempts if tried.outcome is None), None)

    def close(self, outcome: str, *, lost: bool = False) -> None:
        tried = self.open
        assert tried is not None
        tried.outcome = outcome
        if outcome == "CANCELLED":
            tried.lost += lost
            return
        tried.lost = 0
        self.verdicts += 1
        if outcome == "SUCCEEDED":
            self.status, self.run, self.acceptances = "success", tried.attempt.run_id, self.acceptances + 1
        elif self.status != "success":
            self.status = "failed"


@cache
def migrated_file() -> bytes:
    """Migrating once is enough: every example starts from the same bytes."""
    with builders.quick_folder() as folder:
        file = Path(folder, "state.db")
        builders.migrated(Database(f"sqlite:///{file}"))
        return file.read_bytes()


class StateMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        file = Path(self.stack.enter_context(builders.quick_folder()), "state.db")
        file.write_bytes(migrated_file())
        self.actors = Actors.on(Database(f"sqlite:///{file}"))
        self.tokens = [self.actors.workers.register() for _ in range(2)]
        self.known = {partition: Known() for partition in KEYS}

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    # --- operations ---

    @rule(keys=some_keys, worker=a_worker, behind=st.integers(0, 1))
    def issue(self, keys: list[PartitionKey], worker: int, behind: int) -> None:
        """A plan, perhaps made before the last attempt was issued, asks for attempts."""
        seen = {partition: max(0, len(self.known[partition].attempts) - behind) for partition in keys}
        run_id, token = new_run_id(), self.tokens[worker]
        issued, refused = self.actors.control.issue(run_id, token, 1, [planned(k, n) for k, n in seen.items()])
        free = {k for k in keys if self.known[k].open is None and seen[k] == len(self.known[k].attempts)}
        assert {item.attempt.partition: item.attempt_no for item in issued} == {k: seen[k] + 1 for k in free}
        assert {item.attempt.partition for item in refused} == set(keys) - free
        for partition in free:
            attempts = self.known[partition].attempts
            losses = attempts[-1].lost if attempts else 0
            attempts.append(Tried(AttemptKey(partition, run_id), token, losses))

    @precondition(lambda self: self.opened())
    @rule(data=st.data(), word=a_closing)
    def close(self, data: st.DataObject, word: str) -> None:
        tried = data.draw(st.sampled_from(self.opened()))
        closing = say(word, tried.attempt, tried.token)
        assert self.deliver(closing) == ClosingResult(applied=[tried.attempt], repeated=[], refused=[])
        tried.said = closing
        outcome = {"accept": "SUCCEEDED", "reject": "FAILED"}.get(word, "CANCELLED")
        self.known[tried.attempt.partition].close(outcome, lost=word == "lose")

    @precondition(lambda self: self.said())
    @rule(data=st.data())
    def deliver_an_old_word_again(self, data: st.DataObject) -> None:
        tried = data.draw(st.sampled_from(self.said()))
        before = builders.everything(self.actors.database)
        assert tried.said is not None
        assert self.deliver(tried.said) == ClosingResult(applied=[], repeated=[tried.attempt], refused=[])
        assert builders.everything(self.actors.database) == before

    @precondition(lambda self: self.closed())
    @rule(data=st.data(), word=st.sampled_from(["accept", "reject"]))
    def contradict_a_closed_attempt(self, data: st.DataObject, word: str) -> None:
        tried = data.draw(st.sampled_from(self.closed()))
        closing = say(word, tried.attempt, tried.token, again="with other bytes")
        why = f"the attempt was closed before, {tried.outcome}"
        assert self.deliver(closing) == ClosingResult(applied=[], repeated=[], refused=[Refused(tried.attempt, why)])

    @precondition(lambda self: self.opened())
    @rule(data=st.data(), word=a_closing)
    def speak_with_a_strangers_token(self, data: st.DataObject, word: str) -> None:
        tried = data.draw(st.sampled_from(self.opened()))
        closing = say(word, tried.attempt, self.actors.token)
        why = "the attempt belongs to another worker now"
        assert self.deliver(closing) == ClosingResult(applied=[], repeated=[], refused=[Refused(tried.attempt, why)])

    @rule(worker=a_worker)
    def a_worker_dies_and_is_rescued(self, worker: int) -> None:
        dead = self.tokens[worker]
        self.actors.expire(dead)
        held = [known for known in self.known.values() if known.open and known.open.token == dead]
        hopeless = [known for known in held if known.open and known.open.lost + 1 >= MAX_LOSSES]
        found = rescue(self.actors.workers, self.actors.control, self.actors.validator)
        assert found == Rescued(cancelled=len(held) - len(hopeless), rejected=len(hopeless))
        for known in held:
            known.close("FAILED" if known in hopeless else "CANCELLED", lost=True)
        self.tokens[worker] = self.actors.workers.register()

    @rule(keys=some_keys)
    def requeue(self, keys: list[PartitionKey]) -> None:
        failed = [partition for partition in keys if self.known[partition].status == "failed"]
        assert self.actors.control.requeue(keys, builders.audit_entry()) == len(failed)
        for partition in failed:
            self.known[partition].status = "pending"

    @invariant()
    def the_laws_hold(self) -> None:
        read = (schema.partition_state, schema.partition_attempt, schema.event)
        found = builders.everything(self.actors.database, read)
        for law in LAWS:
            law(self.known, found["partition_state"], found["partition_attempt"], found["event"])

    # --- shorthands ---

    def deliver(self, closing: Closing) -> ClosingResult:
        if isinstance(closing, Cancelled):
            return self.actors.control.cancel([closing])
        return self.actors.validator.judge([closing])

    def tried(self) -> list[Tried]:
        return [tried for known in self.known.values() for tried in known.attempts]

    def opened(self) -> list[Tried]:
        return [tried for tried in self.tried() if tried.outcome is None]

    def closed(self) -> list[Tried]:
        return [tried for tried in self.tried() if tried.outcome is not None]

    def said(self) -> list[Tried]:
        return [tried for tried in self.tried() if tried.said is not None]


def say(word: str, attempt: AttemptKey, token: str, again: str = "") -> Closing:
    if word == "accept":
        verdict = accepted(attempt, token)
        return Accepted(attempt, token, "v1", 10, verdict.payload_digest + again, 200, verdict.content_digest)
    if word == "reject":
        return rejected(attempt, token, f"clicks is negative {again}")
    return cancelled(attempt, token, lost=word == "lose")


def key_of(row: dict[str, Any]) -> PartitionKey:
    return PartitionKey(*(row[name] for name in schema.KEY))


Rows = list[dict[str, Any]]
Model = dict[PartitionKey, Known]


def a_partition_has_one_open_attempt_at_most(_: Model, states: Rows, attempts: Rows, events: Rows) -> None:
    opened = [key_of(row) for row in attempts if row["outcome"] is None]
    assert len(opened) == len(set(opened))


def attempts_are_those_of_the_model(model: Model, states: Rows, attempts: Rows, events: Rows) -> None:
    assert {
        (key_of(row), row["attempt_no"]): (row["run_id"], row["worker_token"], row["outcome"], row["lost_count"])
        for row in attempts
    } == {
        (partition, number): (tried.attempt.run_id, tried.token, tried.outcome, tried.lost)
        for partition, known in model.items()
        for number, tried in enumerate(known.attempts, start=1)
    }


def state_is_that_of_the_model(model: Model, states: Rows, attempts: Rows, events: Rows) -> None:
    assert {key_of(row): (row["status"], row["current_run_id"]) for row in states} == {
        partition: (known.status, known.run) for partition, known in model.items() if known.verdicts
    }


def attempt_count_is_the_number_of_verdicts(model: Model, states: Rows, attempts: Rows, events: Rows) -> None:
    judged = Counter(key_of(row) for row in attempts if row["outcome"] in ("SUCCEEDED", "FAILED"))
    assert {key_of(row): row["attempt_count"] for row in states} == judged
    assert judged == Counter({partition: known.verdicts for partition, known in model.items()})


def authority_version_is_the_number_of_acceptances(model: Model, states: Rows, attempts: Rows, events: Rows) -> None:
    good = Counter(key_of(row) for row in attempts if row["outcome"] == "SUCCEEDED")
    assert Counter({key_of(row): row["authority_version"] for row in states}) == good
    assert good == Counter({partition: known.acceptances for partition, known in model.items()})


def every_success_names_the_newest_accepted_attempt(_: Model, states: Rows, attempts: Rows, events: Rows) -> None:
    in_order = sorted(attempts, key=lambda row: int(row["attempt_no"]))
    newest = {key_of(row): row["run_id"] for row in in_order if row["outcome"] == "SUCCEEDED"}
    for row in states:
        assert row["current_run_id"] == newest.get(key_of(row))
        assert row["status"] != "success" or row["current_run_id"]


def every_closing_and_every_acceptance_was_told_once(_: Model, states: Rows, attempts: Rows, events: Rows) -> None:
    def told(kind: str) -> list[tuple[str, str]]:
        return sorted((e["payload"]["partition_key"], e["run_id"]) for e in events if e["type"] == kind)

    def closed(*outcomes: str) -> list[tuple[str, str]]:
        return sorted((str(key_of(row)), row["run_id"]) for row in attempts if row["outcome"] in outcomes)

    assert told("TaskFinished") == closed("SUCCEEDED", "FAILED", "CANCELLED")
    assert told("AuthorityChanged") == closed("SUCCEEDED")


LAWS = (
    a_partition_has_one_open_attempt_at_most,
    attempts_are_those_of_the_model,
    state_is_that_of_the_model,
    attempt_count_is_the_number_of_verdicts,
    authority_version_is_the_number_of_acceptances,
    every_success_names_the_newest_accepted_attempt,
    every_closing_and_every_acceptance_was_told_once,
)

TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)

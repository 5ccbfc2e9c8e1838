"""The rights of each PostgreSQL role: allowed operations through our stores, and refused ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.app import load_workspace
from penstock.cli import health_checks
from penstock.config.rates import RateLimit, RateWindow
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import ensure_current, migrate
from penstock.db.role_check import role_prefixes, role_problems
from penstock.db.roles import AUDITED_ACTS, GRANTS, PURPOSES, Role, make_roles, plan_roles, role_names
from penstock.errors import ActRefused, ConfigError, PenstockError, UsageError
from penstock.lifecycle import Outcome, PartitionStatus
from penstock.partition import AttemptKey, new_run_id, new_ulid
from penstock.projections.fact import Cursor
from penstock.state.action_plans import ActionPlan, ActionPlanStore
from penstock.state.alert_deliveries import AlertDeliveryStore
from penstock.state.alert_records import Alert, AlertChanges, AlertState, EvaluationCursor, NewDelivery, NoticeKind
from penstock.state.alerts import AlertStore
from penstock.state.audited import AuditedAct
from penstock.state.authority import AuthorityStore
from penstock.state.breakers import BreakerStore
from penstock.state.control import ControlStore
from penstock.state.idempotency import IdempotencyStore
from penstock.state.logins import LoginStore
from penstock.state.marks import MarkStore
from penstock.state.orders import Order, OrderKind, OrderState, OrderStore
from penstock.state.quota import QuotaStore
from penstock.state.reader import StateReader
from penstock.state.recheck import FailedRecheck
from penstock.state.retries import Decided, RetryStore
from penstock.state.shares import ShareStore
from penstock.state.tokens import TokenRole, TokenStore
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from penstock.warehouse.pointers import PointerReader
from support import builders, workspaces
from support.builders import (
    NOW,
    TENANT,
    WORKSPACE,
    Actors,
    SetClock,
    accepted,
    another_handle,
    audit_entry,
    cancelled,
    days,
    everything,
    key,
    planned,
    rejected,
    resumed,
)
from support.cli import answer, penstock
from support.harness import Harness

TABLES = (*sorted(schema.metadata.tables), "alembic_version")
DENIED = "permission denied "
FROZEN, ONCE = "closed_attempts_are_frozen: ", "marks_of_attempts_are_set_once: "
MOVES, JUDGES = "each_role_makes_its_own_moves: ", "only_the_validator_judges: "
NOTES = "each_role_notes_its_own_acts: "


def audit_line(command: str) -> str:
    columns = "(at, actor, command, filters, flags, affected, outcome)"
    return f"INSERT INTO audit {columns} VALUES (now(), 'me', '{command}', '{{}}', '{{}}', 1, 'done')"


@dataclass(slots=True)
class Estate:
    """A state database whose owner is no superuser, its roles, and logins."""

    admin: Database
    owner: Database
    prefix: str
    opened: dict[tuple[Role, ...], Database] = field(default_factory=dict)

    def holding(self, *roles: Role) -> Database:
        """The state as a login sees it that is a member of these roles and of nothing else."""
        if roles not in self.opened:
            login = "_".join((self.prefix, "login", *roles))
            groups = ", ".join(role_names(self.prefix)[role] for role in roles)
            command(self.admin, f"CREATE ROLE {login} LOGIN IN ROLE {groups}")
            self.opened[roles] = as_user(self.owner, login)
        return self.opened[roles]

    def actors(self) -> Actors:
        """All actors, each with only its own role."""
        everybody = Actors.on(self.owner)
        control = self.holding(Role.CONTROL)
        return replace(
            everybody,
            control=ControlStore(control, everybody.clock),
            workers=WorkerStore(control, everybody.clock),
            reader=StateReader(control),
            validator=ValidatorStore(self.holding(Role.VALIDATOR), everybody.clock),
        )


def as_user(database: Database, user: str) -> Database:
    return Database(database.url.set(username=user).render_as_string(hide_password=False), database.schema)


def command(database: Database, *statements: str) -> None:
    """Commands that PostgreSQL does not take inside a transaction, or that need none."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def execute(database: Database, statement: str) -> None:
    as_written = {"no_parameters": True}
    database.transact(lambda connection: connection.exec_driver_sql(statement, execution_options=as_written))


def refusal(act: Callable[[], object]) -> str:
    """The error of the database; empty when the operation is allowed."""
    try:
        act()
    except PenstockError as error:
        return str(error).partition(" refused a change: ")[2].partition("\n")[0]
    return ""


def refusal_of(database: Database, statement: str) -> str:
    return refusal(lambda: execute(database, statement))


@pytest.fixture
def prefix(postgres_url: str) -> Iterator[str]:
    """The roles of a test are its own, and go with it: roles belong to the cluster and outlive a database."""
    name = f"p_{new_ulid().lower()}"
    yield name
    admin = Database(postgres_url)
    with admin.snapshot() as connection:
        found = connection.scalars(sa.text("SELECT rolname FROM pg_roles WHERE starts_with(rolname, :p)"), {"p": name})
        roles = list(found)
    command(admin, *(f"DROP OWNED BY {role} CASCADE" for role in roles), *(f"DROP ROLE {role}" for role in roles))
    admin.close()


@pytest.fixture
def estate(postgres_url: str, prefix: str) -> Iterator[Estate]:
    cluster = Database(postgres_url)
    owner = f"{prefix}_owner"
    command(cluster, f"CREATE ROLE {owner} LOGIN CREATEROLE", f"CREATE DATABASE {prefix} OWNER {owner}")
    admin = Database(cluster.url.set(database=prefix).render_as_string(hide_password=False))
    made = Estate(admin, builders.migrated(as_user(admin, owner)), prefix)
    make_roles(made.owner, plan_roles(made.owner, prefix))
    yield made
    for database in (admin, made.owner, *made.opened.values()):
        database.close()
    command(cluster, f"DROP DATABASE {prefix} WITH (FORCE)")
    cluster.close()


def rights(database: Database) -> set[tuple[Any, ...]]:
    """Everything that `db roles` changes, as the catalog has it."""
    questions = (
        "SELECT 'table', c.relname, acl.* FROM pg_class c, aclexplode(c.relacl) acl"
        " WHERE c.relnamespace = current_schema()::regnamespace",
        "SELECT 'column', c.relname || '.' || a.attname, acl.* FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) acl"
        " WHERE c.relnamespace = current_schema()::regnamespace",
        "SELECT 'schema', n.nspname, acl.* FROM pg_namespace n, aclexplode(n.nspacl) acl",
        "SELECT 'database', d.datname, acl.* FROM pg_database d, aclexplode(d.datacl) acl"
        " WHERE d.datname = current_database()",
        "SELECT 'function', p.proname, pg_get_functiondef(p.oid), p.proacl::text FROM pg_proc p"
        " WHERE p.pronamespace = current_schema()::regnamespace",
        "SELECT 'trigger', t.tgname, pg_get_triggerdef(t.oid), t.tgenabled FROM pg_trigger t WHERE NOT t.tgisinternal",
        "SELECT 'role', r.rolname, r.rolcanlogin, r.rolsuper, shobj_description(r.oid, 'pg_authid') FROM pg_roles r"
        " WHERE starts_with(r.rolname, current_database())",
    )
    with database.snapshot() as connection:
        return {tuple(row) for question in questions for row in connection.exec_driver_sql(question)}


# --- allowed operations --------------------------------------------------------------------------------------------


def test_every_table_is_mentioned_for_a_decision() -> None:
    """A new table has no grants until they are declared."""
    assert {table for tables in GRANTS.values() for table in tables} == set(TABLES)
    assert set(GRANTS) == set(PURPOSES) == set(Role)


def test_issuing_judging_cancelling_and_requeueing_need_no_more_than_their_own_roles(estate: Estate) -> None:
    actors = estate.actors()
    first = actors.accept(key(1))
    second = actors.accept(key(1), rows=7)
    actors.reject(key(2))
    actors.cancel(key(3), lost=True)
    assert actors.control.requeue([key(2)], audit_entry()) == 1
    retried = actors.reject(key(2))
    actors.accept(key(2))
    late = actors.validator.judge([rejected(first, actors.token), rejected(retried, actors.token)])
    assert (len(late.refused), late.repeated) == (1, [retried])

    states = {view.key: view.state for view in actors.reader.views([days(1, 3)])}
    assert (states[key(1)].current_run_id, states[key(1)].attempt_count) == (second.run_id, 2)
    assert [states[key(day)].status.value for day in (1, 2, 3)] == ["success", "success", "pending"]
    [line] = actors.reader.audit()
    assert (line["command"], line["affected"]) == ("state retry", 1)


def test_the_control_plane_keeps_runs_workers_retries_and_marks(estate: Estate) -> None:
    actors, control = estate.actors(), estate.holding(Role.CONTROL)
    run_id, token = new_run_id(), actors.workers.register()
    actors.control.start_run(run_id, token, "ada", {}, 1)
    actors.control.finish_run(run_id, actors.token, {"accepted": 0})
    actors.workers.heartbeat(token)
    actors.issue_one(key(2), token)
    actors.workers.stop(token)
    assert [a.worker_token for a in actors.workers.abandoned()] == [token]

    actors.reject(key(1))
    retries, marks = RetryStore(control), MarkStore(control, actors.clock)
    [waiting] = retries.undecided(10)
    retries.decide([Decided(waiting, NOW, "backoff")])
    assert retries.undecided(10) == []
    changed = [
        marks.mark_terminal([key(1)], "hopeless", audit_entry()),
        marks.clear_terminal([key(1)], audit_entry()),
        marks.pause([key(1)], "later", audit_entry()),
        resumed(control, actors.clock, key(1)),
    ]
    assert changed == [1, 1, 1, 1]


def test_only_the_control_plane_claims_quotas_and_the_others_read_them(estate: Estate) -> None:
    limits = (RateLimit(100, RateWindow.DAY), RateLimit(10, RateWindow.HOUR))
    control = estate.holding(Role.CONTROL)
    quotas, shares, token = QuotaStore(control), ShareStore(control), WorkerStore(control, lambda: NOW).register()
    claim = quotas.claim("ads", limits, 1)
    quotas.settle(claim, used=1, spans=1)
    assert shares.take("ads", 8.0, token) == 8.0
    shares.release("ads", token)
    for role in (Role.VALIDATOR, Role.LOADER, Role.CONSUMER):
        other = estate.holding(role)
        assert QuotaStore(other).read("ads", limits).left() == 9
        assert refusal(partial(QuotaStore(other).claim, "ads", limits, 1)).startswith(DENIED)
        assert refusal(partial(QuotaStore(other).settle, claim, 0, 0)).startswith(DENIED)
        assert refusal(partial(ShareStore(other).release, "ads", token)).startswith(DENIED)
        assert refusal_of(other, "DELETE FROM source_quota").startswith(DENIED)
    assert refusal_of(estate.holding(Role.EXTRACTOR), "SELECT 1 FROM source_quota").startswith(DENIED)


def test_only_the_control_plane_has_tokens_sessions_orders_and_plans(estate: Estate) -> None:
    control, clock = estate.holding(Role.CONTROL), SetClock()
    worker = WorkerStore(control, clock).register(control_loop=True)
    tokens, logins, orders = TokenStore(control, clock), LoginStore(control, clock), OrderStore(control, clock)
    entry = audit_entry(command="tokens create")
    made = tokens.create("a" * 16, "kim", TokenRole.VIEWER, "hash", entry)
    tokens.touch(made)
    logins.begin("digest", timedelta(hours=1), token_id=made.token_id)
    logins.count_failure("client")
    assert logins.find("digest") is not None
    order = Order(new_ulid(), OrderKind.RUN, {}, {}, None, "kim", OrderState.QUEUED, NOW)
    orders.create(order, audit_entry(command="orders create"))
    claimed = orders.claim(worker)
    assert claimed is not None
    ControlStore(control, clock).start_run(new_run_id(), worker, "kim", {}, 0, order=claimed.claim)
    assert orders.finish(claimed.claim, OrderState.SUCCEEDED, result={})
    plan = ActionPlan("p", "retry", {}, {}, None, "kim", 1, 0, "d", {}, NOW, NOW + timedelta(hours=1))
    plans = ActionPlanStore(control, clock)
    plans.add(plan)
    plans.claim("p", "kim", worker)
    plans.finish("p", worker, {})
    keys = IdempotencyStore(control, clock)
    keys.begin("kim", "k", "d", worker)
    keys.finish("kim", "k", worker, 200, "{}")
    assert tokens.revoke("kim", entry)
    tables = ("api_token", "login_session", "login_failure", "run_order", "action_plan", "idempotency_key")
    for role in (Role.EXTRACTOR, Role.VALIDATOR, Role.LOADER, Role.CONSUMER):
        for table in tables:
            assert refusal_of(estate.holding(role), f"SELECT 1 FROM {table}").startswith(DENIED)
            assert refusal_of(estate.holding(role), f"DELETE FROM {table}").startswith(DENIED)


def test_only_the_control_plane_evaluates_alerts_and_delivers(estate: Estate) -> None:
    control = estate.holding(Role.CONTROL)
    worker = WorkerStore(control, SetClock()).register(control_loop=True)
    store, queue = AlertStore(control), AlertDeliveryStore(control)
    before = store.lead(worker)
    assert before is not None
    after = EvaluationCursor(Cursor(1, 1), NOW, NOW)
    alert = Alert("r", "s", "a", 1, AlertState.FIRING, NOW, 1, "m", None, None, ("ops",), NOW, NOW, 1)
    told = NewDelivery("d", "a", "r", "s", NoticeKind.FIRED, "ops", {}, NOW, NOW)
    store.evaluate(worker, before, after, lambda alerts, unsent: AlertChanges((alert,), (told,)))
    claimed = queue.claim(worker, NOW)
    assert claimed is not None
    assert queue.delivered(claimed, NOW)
    for role in (Role.EXTRACTOR, Role.VALIDATOR, Role.LOADER, Role.CONSUMER):
        for table in ("alert", "alert_delivery", "alert_cursor"):
            assert refusal_of(estate.holding(role), f"SELECT 1 FROM {table}").startswith(DENIED)
            assert refusal_of(estate.holding(role), f"DELETE FROM {table}").startswith(DENIED)


def test_the_control_plane_writes_breakers_and_backfills(estate: Estate) -> None:
    control = estate.holding(Role.CONTROL)
    for table in (schema.source_breaker, schema.backfill, schema.backfill_chunk):
        names = ", ".join(column.name for column in table.c)
        first = next(iter(table.c)).name
        execute(control, f"INSERT INTO {table} ({names}) SELECT {names} FROM {table}")
        execute(control, f"UPDATE {table} SET {first} = {first}")


def test_the_validator_withdraws_a_run_and_its_rows_go_though_it_may_not_touch_pointers(estate: Estate) -> None:
    actors = estate.actors()
    trusted = actors.accept()
    replace(actors, reader=StateReader(estate.owner)).publish()
    pointers = PointerReader(estate.holding(Role.CONSUMER))
    before = pointers.pointer(key())
    assert actors.validator.withdraw([FailedRecheck(trusted, "clicks is negative")]) == [key()]
    after = pointers.pointer(key())
    assert before is not None
    assert before.available
    assert after == replace(before, available=False)


def test_a_temporary_table_in_the_place_of_the_pointers_keeps_nothing_visible(estate: Estate) -> None:
    actors = estate.actors()
    actors.accept()
    actors.publish()
    execute(
        estate.holding(Role.VALIDATOR),
        "CREATE TEMPORARY TABLE warehouse_pointer AS SELECT s.*, true AS available FROM partition_state s;"
        " GRANT ALL ON warehouse_pointer TO PUBLIC;"
        " UPDATE partition_state SET status = 'failed', error_message = 'x', authority_version = 2",
    )
    found = PointerReader(estate.owner).pointer(key())
    assert found is not None
    assert not found.available


def test_a_slice_goes_all_the_way_with_each_actor_in_its_own_role(estate: Estate, tmp_path: Path) -> None:
    """Received and accepted, published, read, withdrawn, and taken out of the table again."""
    house = Harness(tmp_path, state=estate.owner.url.render_as_string(hide_password=False))
    handles = [house.workspace.context.database]
    loader, consumer = estate.holding(Role.LOADER), estate.holding(Role.CONSUMER)
    house.control = ControlStore(estate.holding(Role.CONTROL), house.now)
    house.validator = ValidatorStore(estate.holding(Role.VALIDATOR), house.now)
    slices = {workspaces.key(1): 1, workspaces.key(2): 2}
    run_id = house.deliver(slices)

    house.workers = WorkerStore(loader, house.now)
    house.workspace.context.database = loader
    assert house.publish().loaded == 2
    house.workspace.context.database = consumer
    assert house.clicks() == {workspaces.key(1): {1}, workspaces.key(2): {2}}
    wanting = FailedRecheck(AttemptKey(workspaces.key(1), run_id), "wrong after all")
    house.validator.withdraw([wanting], audit_entry(command="validate"))
    assert house.clicks() == {workspaces.key(2): {2}}
    assert len(list(house.workspace.raw.lines_of(workspaces.key(2), run_id))) == 3  # the trusted run is free
    with pytest.raises(ActRefused, match=r"only operators, who may write to the audit log, read it"):
        house.workspace.raw.lines_of(workspaces.key(1), run_id)
    house.workspace.context.database = loader
    with house.workspace.context.audited(audit_entry(command="warehouse reconcile")) as act:
        act.affected = house.publish().hidden
    lines = StateReader(estate.owner).audit()
    assert [(line["command"], line["affected"], line["outcome"]) for line in lines] == [
        ("warehouse reconcile", 1, "done"),
        ("warehouse reconcile", 0, "begun"),
        ("validate", 1, "demoted"),
    ]
    house.workspace.context.database = consumer
    assert house.clicks() == {workspaces.key(2): {2}}
    for database in handles:
        database.close()


def test_a_consumer_reads_states_pointers_and_contracts(estate: Estate) -> None:
    actors, consumer = estate.actors(), estate.holding(Role.CONSUMER)
    run_id = actors.accept(key(1)).run_id
    actors.publish(key(1))
    actors.reject(key(2))
    ensure_current(consumer, TENANT, WORKSPACE)
    reader = StateReader(consumer)
    state = reader.state(key(1))
    assert state is not None
    assert (state.status, state.current_run_id) == (PartitionStatus.SUCCESS, run_id)
    assert [(view.state.status, view.last_attempt_outcome) for view in reader.views([days(1, 2)])] == [
        (PartitionStatus.SUCCESS, Outcome.SUCCEEDED),
        (PartitionStatus.FAILED, Outcome.FAILED),
    ]
    assert len(reader.contracts()) == 1
    assert (PointerReader(consumer).find()[1], PointerReader(consumer).waiting()) == (1, 1)
    assert BreakerStore(consumer, actors.clock).all() == []


@pytest.mark.parametrize("roles", [(Role.VALIDATOR, Role.CONTROL, Role.LOADER), (Role.CONTROL, Role.VALIDATOR)])
def test_a_member_of_both_roles_acts_for_an_operator(estate: Estate, roles: tuple[Role, ...]) -> None:
    actors = estate.actors()
    first, second = actors.accept(key(1)), actors.accept(key(1))
    operator = AuthorityStore(estate.holding(*roles), actors.clock)
    if Role.LOADER in roles:  # the abandoned run is hidden at once
        assert operator.rollback(key(1), first.run_id, audit_entry())
    assert operator.demote(key(1), "wrong after all", audit_entry())
    state = actors.reader.state(key(1))
    assert state is not None
    expected = first if Role.LOADER in roles else second
    assert (state.status, state.current_run_id) == (PartitionStatus.FAILED, expected.run_id)


def test_the_owner_of_the_tables_may_do_everything_though_he_is_no_member(estate: Estate) -> None:
    actors = Actors.on(estate.owner)
    actors.reject(key(1))
    assert actors.control.requeue([key(1)], audit_entry()) == 1
    actors.accept(key(1))
    actors.demote(key(1))


# --- refused operations --------------------------------------------------------------------------------------------

NEW_STATE = "INSERT INTO partition_state VALUES ('demo', '1', 'q', '2024-06-30', {}, now(), NULL, 1, 1)"
SUCCESS = NEW_STATE.format("'success', 'r', 'v1', 1")
JUDGED = (
    "stage = 'validate', record_count = 1, payload_digest = 'd', payload_bytes = 1, content_digest = 'c',"
    " finished_at = now()"
)
WHY = "stage = 'validate', error_class = 'data', error_message = 'x', finished_at = now()"
# The columns that both roles may write when they close an attempt, and no role afterwards.
REWRITTEN = (
    "content_digest = 'other'", "payload_digest = 'other'", "payload_bytes = 7", "error_message = 'other'",
    "error_class = 'transient'", "stage = 'load'", "complaints = '[]'", "measures = '{}'", "record_count = 7",
    "finished_at = now()", "lost_count = 3", "outcome = 'CANCELLED'",
)  # fmt: skip

REFUSED = [
    # The validator neither issues nor requeues, and writes only columns of a verdict.
    (Role.VALIDATOR, "INSERT INTO partition_attempt SELECT * FROM partition_attempt", DENIED),
    (Role.VALIDATOR, "UPDATE partition_attempt SET worker_token = 'mine'", DENIED),
    (Role.VALIDATOR, "UPDATE partition_attempt SET approved_at = now()", DENIED),
    *(
        (Role.VALIDATOR, f"UPDATE partition_attempt SET {change} WHERE outcome = 'FAILED'", FROZEN)
        for change in REWRITTEN
    ),
    (Role.VALIDATOR, "UPDATE partition_attempt SET demoted_at = NULL WHERE demoted_at IS NOT NULL", ONCE),
    (Role.VALIDATOR, "UPDATE partition_attempt SET demoted_at = now() WHERE demoted_at IS NOT NULL", ONCE),
    (Role.VALIDATOR, "UPDATE partition_state SET status = 'pending', error_message = NULL", MOVES),
    (Role.VALIDATOR, "UPDATE partition_state SET customer_id = '2'", DENIED),
    (Role.VALIDATOR, "UPDATE partition_control SET paused_at = NULL, paused_by = NULL", DENIED),
    (Role.VALIDATOR, "UPDATE warehouse_pointer SET available = true", DENIED),
    (Role.VALIDATOR, "SELECT * FROM warehouse_pointer", DENIED),
    (Role.VALIDATOR, "DELETE FROM publish_due", DENIED),
    (Role.VALIDATOR, audit_line("state demote"), NOTES),
    (Role.LOADER, audit_line("validate"), NOTES),
    (Role.VALIDATOR, "SELECT payload FROM event", DENIED),
    (
        Role.VALIDATOR,
        "CREATE TEMPORARY TABLE mine (LIKE partition_state); CREATE TRIGGER mine AFTER UPDATE ON mine FOR EACH ROW"
        " EXECUTE FUNCTION hide_what_is_not_success()",
        "permission denied for function hide_what_is_not_success",
    ),
    # The control plane writes no verdict, and its only transition is failed -> pending.
    (Role.CONTROL, SUCCESS, MOVES),
    (Role.CONTROL, NEW_STATE.format("'pending', 'r', 'v1', 1"), MOVES),
    (Role.CONTROL, "UPDATE partition_state SET status = 'success', error_message = NULL", MOVES),
    (Role.CONTROL, "UPDATE partition_state SET status = 'failed', error_message = 'x' WHERE status = 'success'", MOVES),
    (
        Role.CONTROL,
        "UPDATE partition_state SET status = 'pending', error_message = NULL, current_run_id = 'r',"
        " authority_version = 1 WHERE status = 'failed'",
        MOVES,
    ),
    (Role.CONTROL, "UPDATE partition_state SET attempt_count = 9", MOVES),
    (Role.CONTROL, f"UPDATE partition_attempt SET outcome = 'SUCCEEDED', {JUDGED} WHERE outcome IS NULL", JUDGES),
    (Role.CONTROL, f"UPDATE partition_attempt SET outcome = 'FAILED', {WHY} WHERE outcome IS NULL", JUDGES),
    (Role.CONTROL, "INSERT INTO partition_attempt SELECT * FROM partition_attempt", DENIED),
    (Role.CONTROL, "UPDATE partition_attempt SET attempt_no = 9", DENIED),
    *(
        (Role.CONTROL, f"UPDATE partition_attempt SET {change} WHERE outcome = 'FAILED'", FROZEN)
        for change in REWRITTEN
    ),
    (Role.CONTROL, "UPDATE partition_attempt SET worker_token = 'mine' WHERE outcome = 'FAILED'", FROZEN),
    (Role.CONTROL, "UPDATE partition_attempt SET raw_deleted_at = NULL WHERE raw_deleted_at IS NOT NULL", ONCE),
    (Role.CONTROL, "UPDATE partition_attempt SET approved_at = now() WHERE approved_at IS NOT NULL", ONCE),
    (Role.CONTROL, "UPDATE warehouse_pointer SET available = true", DENIED),
    (Role.CONTROL, "UPDATE audit SET actor = 'nobody'", DENIED),
    (Role.CONTROL, "DELETE FROM partition_attempt", DENIED),
    # The loader may lock a state, and not change it.
    (Role.LOADER, "UPDATE partition_state SET updated_at = now()", MOVES),
    (Role.LOADER, "UPDATE partition_state SET status = 'success', error_message = NULL", DENIED),
    (Role.LOADER, SUCCESS, DENIED),
    (Role.LOADER, "UPDATE partition_attempt SET demoted_at = now()", DENIED),
    (Role.LOADER, "INSERT INTO partition_attempt SELECT * FROM partition_attempt", DENIED),
    (Role.LOADER, "DELETE FROM warehouse_pointer", DENIED),
    (Role.LOADER, "UPDATE load_record SET loaded_at = now()", DENIED),
    (Role.LOADER, "SELECT * FROM audit", DENIED),
    (Role.CONSUMER, "SELECT complaints FROM partition_attempt", DENIED),
    (Role.CONSUMER, "SELECT 1 FROM partition_state FOR SHARE", DENIED),
    (Role.CONSUMER, "DELETE FROM event", DENIED),
]


@pytest.fixture
def busy(estate: Estate) -> Actors:
    """One partition is served, one has failed, one is being worked on, and one bears every mark."""
    actors = estate.actors()
    actors.accept(key(1))
    actors.publish(key(1))
    actors.reject(key(2))
    actors.issue_one(key(3))
    actors.accept(key(4))
    marked = "demoted_at = now(), approved_at = now(), raw_deleted_at = now() WHERE logical_date = '2024-06-04'"
    execute(estate.owner, f"UPDATE partition_attempt SET {marked}")
    return actors


def test_what_a_role_may_not_do_is_refused_and_changes_nothing(estate: Estate, busy: Actors) -> None:
    before = everything(estate.owner)
    answers = [(role, statement, refusal_of(estate.holding(role), statement)) for role, statement, _ in REFUSED]
    wanted = [words for _, _, words in REFUSED]
    assert [found for found, words in zip(answers, wanted, strict=True) if not found[2].startswith(words)] == []
    assert everything(estate.owner) == before


def test_a_refusal_says_who_may(estate: Estate, busy: Actors) -> None:
    def answer_to(role: Role, change: str) -> str:
        return refusal_of(estate.holding(role), f"UPDATE partition_state SET {change}").replace(estate.prefix, "p")

    requeue = "status = 'pending', error_message = NULL WHERE status = 'failed'"
    assert answer_to(Role.VALIDATOR, requeue) == (
        f"{MOVES}p_login_validator may not move a partition from failed to pending: members of p_control may"
    )
    assert answer_to(Role.CONTROL, "status = 'failed', error_message = 'x' WHERE status = 'success'") == (
        f"{MOVES}p_login_control may not move a partition from success to failed: members of p_validator may"
    )
    assert answer_to(Role.CONTROL, "status = 'pending', attempt_count = 9 WHERE status = 'success'") == (
        f"{MOVES}p_login_control may not move a partition from success to pending:"
        " members of both p_validator and p_control may"
    )


def test_a_forged_catalog_makes_nobody_an_owner(estate: Estate) -> None:
    """Temporary tables come first in name resolution; the trigger about transitions must not use them."""
    forged = "SELECT oid, current_user::regrole::oid AS relowner FROM pg_catalog.pg_class"
    told = refusal_of(estate.holding(Role.CONTROL), f"CREATE TEMPORARY TABLE pg_class AS {forged}; {SUCCESS}")
    assert told.startswith(MOVES)


VERBS: dict[str, Callable[[Database, Actors, AttemptKey], object]] = {
    "issue": lambda database, a, _: ControlStore(database, a.clock).issue(new_run_id(), a.token, 1, [planned(key(4))]),
    "cancel": lambda database, a, attempt: ControlStore(database, a.clock).cancel([cancelled(attempt, a.token)]),
    "requeue": lambda database, a, _: ControlStore(database, a.clock).requeue([key(2)], audit_entry()),
    "accept": lambda database, a, attempt: ValidatorStore(database, a.clock).judge([accepted(attempt, a.token)]),
    "reject": lambda database, a, attempt: ValidatorStore(database, a.clock).judge([rejected(attempt, a.token)]),
    "demote": lambda database, a, _: AuthorityStore(database, a.clock).demote(key(1), "wrong", audit_entry()),
    "pause": lambda database, a, _: MarkStore(database, a.clock).pause([key(1)], None, audit_entry()),
    "register": lambda database, a, _: WorkerStore(database, a.clock).register(),
}


@pytest.mark.parametrize(
    ("role", "verbs"),
    [
        (Role.EXTRACTOR, set(VERBS)),
        (Role.VALIDATOR, {"issue", "requeue", "demote", "pause", "register"}),
        (Role.CONTROL, {"accept", "reject", "demote"}),
        (Role.LOADER, set(VERBS) - {"register"}),
        (Role.CONSUMER, set(VERBS)),
    ],
)
def test_the_verbs_of_others_are_refused_whatever_object_is_held(
    estate: Estate, busy: Actors, role: Role, verbs: set[str]
) -> None:
    [attempt] = [AttemptKey(a.key, a.run_id) for a in busy.reader.attempts(key(3))]
    before = everything(estate.owner)
    database = estate.holding(role)
    answers = {verb: refusal(lambda verb=verb: VERBS[verb](database, busy, attempt)) for verb in sorted(verbs)}  # type: ignore[misc]
    assert {verb: text for verb, text in answers.items() if not text.startswith((DENIED, MOVES, JUDGES, NOTES))} == {}
    assert everything(estate.owner) == before


def writes(table: str) -> list[str]:
    column = next(iter(schema.metadata.tables[table].c)).name if table in schema.metadata.tables else "version_num"
    return [
        f"INSERT INTO {table} DEFAULT VALUES",
        f"UPDATE {table} SET {column} = {column}",
        f"DELETE FROM {table}",
        f"TRUNCATE {table} CASCADE",
    ]


def test_a_consumer_writes_nothing_and_an_extractor_does_not_even_read(estate: Estate) -> None:
    consumer, extractor = estate.holding(Role.CONSUMER), estate.holding(Role.EXTRACTOR)
    for table in TABLES:
        answers = [refusal_of(consumer, statement) for statement in writes(table)]
        answers += [refusal_of(extractor, statement) for statement in (f"SELECT 1 FROM {table}", *writes(table))]
        assert set(answers) == {f"{DENIED}for table {table}"}


@pytest.mark.parametrize("role", Role)
def test_nobody_deletes_history_or_changes_the_schema(estate: Estate, role: Role) -> None:
    queues = {table for table, privileges in GRANTS[role].items() if "DELETE" in privileges}
    # old windows, dead workers' shares; sessions, failures, plans and request keys that expired
    api = {"login_session", "login_failure", "action_plan", "idempotency_key"}
    alerts = {"alert", "alert_delivery"}  # recovered and delivered long ago
    own = {"event", "source_quota", "source_share", *api, *alerts} if role is Role.CONTROL else set()
    assert queues <= {"retry_due", "publish_due", "load_batch_item", *own}
    forbidden = [
        *(f"DELETE FROM {table}" for table in TABLES if table not in queues),
        *(f"TRUNCATE {table} CASCADE" for table in TABLES),
        "DROP TABLE event",
        "DROP TRIGGER each_role_makes_its_own_moves ON partition_state",
        "ALTER TABLE partition_state DISABLE TRIGGER ALL",
        "CREATE TABLE mine (n integer)",
        "SET session_replication_role = replica",
    ]
    answers = {statement: refusal_of(estate.holding(role), statement) for statement in forbidden}
    assert {s: text for s, text in answers.items() if not text.startswith((DENIED, "must be owner"))} == {}


# --- making the roles ----------------------------------------------------------------------------------------------


def test_repeating_it_changes_nothing(estate: Estate) -> None:
    once = rights(estate.owner)
    make_roles(estate.owner, plan_roles(estate.owner, estate.prefix))
    assert rights(estate.owner) == once
    assert {row[:4] for row in once if row[0] == "role"} >= {
        ("role", name, False, False) for name in role_names(estate.prefix).values()
    }


def test_repeating_it_takes_away_what_was_granted_beside_it(estate: Estate) -> None:
    once = rights(estate.owner)
    names = role_names(estate.prefix)
    for statement in (
        f"GRANT DELETE ON partition_state TO {names[Role.CONSUMER]}",
        f"GRANT UPDATE (available) ON warehouse_pointer TO {names[Role.VALIDATOR]}",
        f"GRANT CREATE ON SCHEMA public TO {names[Role.LOADER]}",
        f"REVOKE INSERT ON audit FROM {names[Role.CONTROL]}",
        "GRANT SELECT ON audit TO PUBLIC",
        "GRANT EXECUTE ON FUNCTION hide_what_is_not_success() TO PUBLIC",
        "ALTER FUNCTION hide_what_is_not_success() SECURITY INVOKER",
        "DROP TRIGGER only_the_validator_judges ON partition_attempt",
    ):
        execute(estate.owner, statement)
    assert rights(estate.owner) != once
    make_roles(estate.owner, plan_roles(estate.owner, estate.prefix))
    assert rights(estate.owner) == once


def test_the_owner_can_repeat_what_an_administrator_did(estate: Estate) -> None:
    once = rights(estate.owner)
    execute(estate.owner, "DROP FUNCTION each_role_makes_its_own_moves, only_the_validator_judges CASCADE")
    for database in (estate.admin, estate.owner):
        make_roles(database, plan_roles(database, estate.prefix))
        assert rights(estate.owner) == once


def test_migrating_a_database_with_roles_leaves_them_alone(estate: Estate) -> None:
    once = rights(estate.owner)
    migrate(estate.owner, TENANT, WORKSPACE)
    assert rights(estate.owner) == once


def test_state_can_be_written_by_its_owner_after_the_roles_were_dropped(estate: Estate) -> None:
    names = ", ".join(role_names(estate.prefix).values())
    command(estate.admin, f"DROP OWNED BY {names}", f"DROP ROLE {names}")
    Actors.on(estate.owner).accept()


def test_roles_of_another_workspace_or_of_a_login_are_not_taken_over(estate: Estate) -> None:
    second = Database(estate.owner.url.render_as_string(hide_password=False), "second")
    other = another_handle(builders.migrated(second))
    taken = rf"is taken \(Penstock workspace acme/ads in {estate.prefix}\.public\): .*--prefix"
    with pytest.raises(ConfigError, match=taken):
        plan_roles(other, estate.prefix)
    command(estate.admin, f"CREATE ROLE {estate.prefix}_2_control LOGIN")
    with pytest.raises(ConfigError, match=r"_2_control is taken \(a login or an administrator\)"):
        plan_roles(other, f"{estate.prefix}_2")
    for database in (second, other):
        database.close()


def test_without_the_right_to_create_roles_or_own_the_tables_there_is_an_error(estate: Estate) -> None:
    command(estate.admin, f"ALTER ROLE {estate.prefix}_owner NOCREATEROLE")
    make_roles(estate.owner, plan_roles(estate.owner, estate.prefix))  # they are there: nothing is created
    with pytest.raises(ConfigError, match=f"{estate.prefix}_owner may not create roles: that needs CREATEROLE"):
        make_roles(estate.owner, plan_roles(estate.owner, f"{estate.prefix}_2"))
    control = estate.holding(Role.CONTROL)
    with pytest.raises(ConfigError, match=f"does not own the tables: run this as {estate.prefix}_owner"):
        make_roles(control, plan_roles(control, estate.prefix))


def test_roles_that_could_not_stage_rows_are_refused(estate: Estate) -> None:
    """PostgreSQL only warns about grants on a database of another owner: the roles would fail at their first write."""
    validator = role_names(estate.prefix)[Role.VALIDATOR]
    command(
        estate.admin,
        f"ALTER DATABASE {estate.prefix} OWNER TO postgres",
        f"GRANT CREATE ON SCHEMA public TO {estate.prefix}_owner",
        f"REVOKE TEMPORARY ON DATABASE {estate.prefix} FROM PUBLIC, {validator}",
    )
    with pytest.raises(ConfigError, match=r"the roles need TEMPORARY, which .*_owner may not grant") as refused:
        make_roles(estate.owner, plan_roles(estate.owner, estate.prefix))
    command(estate.admin, str(refused.value).split("`")[1])
    make_roles(estate.owner, plan_roles(estate.owner, estate.prefix))
    estate.actors().accept()


@pytest.mark.parametrize("bad", ["", "Penstock", "1st", "pen-stock", "x; DROP TABLE event", "x" * 60])
def test_a_prefix_that_cannot_be_a_name_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match=r"must be lower-case letters|longer than 63 characters"):
        role_names(bad)


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def workspace(postgres_url: str, prefix: str, tmp_path: Path) -> Iterator[Path]:
    """In a schema of a shared database, opened by a superuser."""
    folder = workspaces.write_workspace(tmp_path, state=postgres_url, schema=prefix)
    yield folder
    admin = Database(postgres_url)
    command(admin, f"DROP SCHEMA IF EXISTS {prefix} CASCADE")
    admin.close()


def existing(postgres_url: str, prefix: str) -> list[str]:
    admin = Database(postgres_url)
    with admin.snapshot() as connection:
        query = sa.text("SELECT rolname FROM pg_roles WHERE starts_with(rolname, :p) ORDER BY rolname")
        found = list(connection.scalars(query, {"p": prefix}))
    admin.close()
    return found


def test_the_command_shows_and_makes_the_roles(workspace: Path, postgres_url: str, prefix: str) -> None:
    assert "run `penstock db migrate`" in penstock("db", "roles", workspace=workspace).stderr
    answer("db", "migrate", workspace=workspace)
    names = list(role_names(prefix).values())
    asked = ("db", "roles", "--prefix", prefix)

    preview = answer(*asked, "--dry-run", workspace=workspace)
    assert (preview["roles"], preview["dry_run"], existing(postgres_url, prefix)) == (names, True, [])
    made = answer(*asked, workspace=workspace)
    assert made == {**preview, "dry_run": False}
    assert existing(postgres_url, prefix) == sorted(names)

    done = penstock(*asked, workspace=workspace)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:5]] == names
    assert done.stdout.endswith(f"GRANT {prefix}_consumer TO <login>;\n")


def test_what_a_dry_run_prints_is_a_script_for_an_administrator(
    workspace: Path, postgres_url: str, prefix: str
) -> None:
    answer("db", "migrate", workspace=workspace)
    script = penstock("db", "roles", "--prefix", prefix, "--dry-run", workspace=workspace).stdout
    assert script.rstrip().endswith(f"GRANT {prefix}_consumer TO <login>;")
    admin = Database(postgres_url, prefix)
    with admin.engine.connect().execution_options(isolation_level="AUTOCOMMIT", no_parameters=True) as connection:
        connection.exec_driver_sql(script)
    by_hand = rights(admin)
    make_roles(admin, plan_roles(admin, prefix))
    assert rights(admin) == by_hand
    assert existing(postgres_url, prefix) == sorted(role_names(prefix).values())
    admin.close()


def test_the_command_names_the_roles_after_the_workspace(workspace: Path) -> None:
    answer("db", "migrate", workspace=workspace)
    preview = answer("db", "roles", "--dry-run", workspace=workspace)
    assert preview["roles"] == [f"penstock_ads_{role}" for role in Role]


def test_the_command_refuses_sqlite_and_a_bad_prefix(tmp_path: Path) -> None:
    folder = workspaces.write_workspace(tmp_path)
    done = penstock("db", "roles", workspace=folder)
    assert (done.returncode, "roles need PostgreSQL" in done.stderr) == (1, True)
    done = penstock("db", "roles", "--prefix", "Ads", workspace=folder)
    assert (done.returncode, done.stdout) == (2, "")


def test_complete_roles_have_no_problems_and_each_change_is_found(estate: Estate) -> None:
    admin, prefix = estate.admin, estate.prefix
    where = "public"
    assert role_prefixes(estate.owner) == [prefix]
    assert role_problems(estate.owner, prefix) == []
    assert role_problems(estate.holding(Role.CONSUMER), prefix) == []  # also for a read-only role

    def told(*statements: str) -> list[str]:
        command(admin, *statements)
        found = role_problems(estate.owner, prefix)
        make_roles(estate.owner, plan_roles(estate.owner, prefix))
        assert role_problems(estate.owner, prefix) == []
        return found

    loader, consumer = f"{prefix}_loader", f"{prefix}_consumer"
    assert told(f"REVOKE INSERT ON {where}.load_record FROM {loader}") == [f"{loader} lacks INSERT on load_record"]
    assert told(f"GRANT UPDATE (status) ON {where}.partition_state TO {consumer}") == [
        f"{consumer} has UPDATE (status) on partition_state, which is not its own"
    ]
    assert told(f"GRANT SELECT ON {where}.audit TO PUBLIC") == ["public has SELECT on audit, which is not its own"]
    assert told(f"ALTER TABLE {where}.partition_state DISABLE TRIGGER each_role_makes_its_own_moves") == [
        "the trigger each_role_makes_its_own_moves is missing or disabled"
    ]
    assert told(f"DROP FUNCTION {where}.only_the_validator_judges() CASCADE") == [
        "the rule only_the_validator_judges is missing or of another release"
    ]
    assert told(f"ALTER FUNCTION {where}.hide_what_is_not_success() SECURITY INVOKER") == [
        "the function hide_what_is_not_success does not run as the owner of the tables"
    ]
    command(admin, f"DROP OWNED BY {prefix}_extractor", f"DROP ROLE {prefix}_extractor")
    assert role_problems(estate.owner, prefix) == [f"the role {prefix}_extractor is missing"]


def test_doctor_says_what_to_do_about_incomplete_roles(estate: Estate, tmp_path: Path) -> None:
    url = estate.owner.url.render_as_string(hide_password=False)
    ws = load_workspace(workspaces.write_workspace(tmp_path, state=url))
    assert "complete" in health_checks.roles(ws)
    command(estate.admin, f"REVOKE INSERT ON public.load_record FROM {estate.prefix}_loader")
    with pytest.raises(
        ConfigError, match=f"lacks INSERT on load_record: run `penstock db roles --prefix {estate.prefix}`"
    ):
        health_checks.roles(ws)
    make_roles(estate.owner, plan_roles(estate.owner, estate.prefix))
    assert "complete" in health_checks.roles(ws)
    ws.context.database.close()


def test_roles_note_acts_that_exist() -> None:
    assert {act for acts in AUDITED_ACTS.values() for act in acts} <= {str(act) for act in AuditedAct}

"""API tokens, page sessions and failed logins, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.app import Workspace, load_workspace
from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import ActRefused, NotAuthenticated, TooManyLogins, UsageError
from penstock.partition import new_ulid
from penstock.state.logins import MAX_FAILURES, WINDOW, LoginStore
from penstock.state.tokens import TokenRole, TokenStore
from support import builders
from support.builders import NOW, Actors, SetClock, audit_entry, everything
from support.cli import in_process
from support.workspaces import open_at, write_workspace


@pytest.fixture(params=builders.BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    state, name = "sqlite:///state.db", None
    if request.param == "postgresql":
        state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    opened = open_at(write_workspace(tmp_path, state=state, schema=name))
    opened.context.clock = SetClock()
    yield opened
    opened.close()


def move(workspace: Workspace, by: timedelta) -> None:
    workspace.context.clock = SetClock(workspace.context.now() + by)


def test_a_token_is_found_by_its_text_and_only_by_it(workspace: Workspace) -> None:
    made, text = workspace.tokens.create("kim", "operator", actor="ada")
    other, another = workspace.tokens.create("lee", "viewer", actor="ada")
    found = workspace.tokens.find(text)
    assert found is not None
    assert (found.token_id, found.name, found.role) == (made.token_id, "kim", TokenRole.OPERATOR)
    secret, foreign = text.split("_", 2)[2], another.split("_", 2)[2]
    mixed = f"penstock_{made.token_id}_{foreign}"
    for wrong in ("", "kim", text[:-1], text + "x", text.upper(), mixed, f"penstock_{other.token_id}_{secret}"):
        assert workspace.tokens.find(wrong) is None
    workspace.tokens.find(another)  # both are verified and remembered: the ids still belong to their own secrets
    assert workspace.tokens.find(mixed) is None


def test_the_database_holds_no_secret(workspace: Workspace) -> None:
    _, text = workspace.tokens.create("kim", "admin", actor="ada")
    session = workspace.logins.login(text, "127.0.0.1")
    stored = repr(everything(workspace.context.database))
    assert text not in stored
    assert text.split("_", 2)[2] not in stored
    assert session.cookie not in stored
    assert session.csrf not in stored
    assert "$argon2id$" in stored


def test_a_name_has_one_valid_token_and_may_be_used_again_after_revocation(workspace: Workspace) -> None:
    _, first = workspace.tokens.create("kim", "operator", actor="ada")
    with pytest.raises(ActRefused, match="a token kim exists"):
        workspace.tokens.create("kim", "viewer", actor="ada")
    assert workspace.tokens.revoke("kim", actor="bo")
    assert not workspace.tokens.revoke("kim", actor="bo")
    _, second = workspace.tokens.create("kim", "viewer", actor="ada")
    assert workspace.tokens.find(first) is None
    assert workspace.tokens.find(second) is not None
    assert [(t.name, t.revoked_by) for t in workspace.tokens.all()] == [("kim", "bo"), ("kim", None)]
    with pytest.raises(UsageError, match="there is no token lee"):
        workspace.tokens.revoke("lee")


@pytest.mark.parametrize("name", ["", " kim", "a b", "x" * 64, "-kim", "kim'; DROP TABLE api_token; --", "küm"])
def test_a_name_that_the_audit_log_could_not_show_is_refused(workspace: Workspace, name: str) -> None:
    with pytest.raises(UsageError, match="token name"):
        workspace.tokens.create(name, "viewer")
    with pytest.raises(UsageError, match="role 'owner' is unknown"):
        workspace.tokens.create("kim", "owner")
    assert workspace.tokens.all() == []


def test_creation_and_revocation_are_audited_together_with_the_change(workspace: Workspace) -> None:
    workspace.tokens.create("kim", "operator", actor="ada")
    workspace.tokens.revoke("kim", actor="bo")
    rows = everything(workspace.context.database, [schema.audit])["audit"]
    assert [(row["actor"], row["command"], row["filters"], row["flags"]) for row in rows] == [
        ("ada", "tokens create", {"name": "kim"}, {"role": "operator"}),
        ("bo", "tokens revoke", {"name": "kim"}, {}),
    ]


def test_the_use_of_a_token_is_recorded_once_a_minute(workspace: Workspace) -> None:
    _, text = workspace.tokens.create("kim", "viewer")
    for seconds, expected in ((0, 0), (30, 0), (60, 90)):
        move(workspace, timedelta(seconds=seconds))
        workspace.tokens.find(text)
        [token] = workspace.tokens.all()
        assert token.last_used_at == NOW + timedelta(seconds=expected)


def test_a_token_is_found_at_once_while_another_transaction_writes(workspace: Workspace) -> None:
    made, text = workspace.tokens.create("kim", "viewer")
    write = sa.update(schema.api_token).values(created_by="other")
    with ThreadPoolExecutor(1) as pool:
        with workspace.context.database.engine.begin() as connection:
            connection.execute(write)  # locks the file of SQLite, or the row in PostgreSQL
            found = pool.submit(workspace.tokens.find, text).result(timeout=20)
        assert found is not None
        assert found.token_id == made.token_id
    assert [token.last_used_at for token in workspace.tokens.all()] == [None]
    workspace.tokens.find(text)
    assert [token.last_used_at for token in workspace.tokens.all()] == [NOW]


def test_a_session_ends_by_logout_by_time_and_with_its_token(workspace: Workspace) -> None:
    _, text = workspace.tokens.create("kim", "viewer")
    _, other = workspace.tokens.create("lee", "viewer")
    first, second, third = (workspace.logins.login(text, "c") for _ in range(3))
    mine = workspace.logins.login(other, "c")
    assert len({session.cookie for session in (first, second, third)}) == 3
    found = workspace.logins.find(first.cookie)
    assert found is not None
    assert (found.name, found.csrf) == ("kim", first.csrf)
    workspace.logins.logout(first.cookie)
    assert workspace.logins.find(first.cookie) is None
    assert workspace.logins.find(second.cookie) is not None
    assert workspace.logins.find(second.csrf) is None
    workspace.tokens.revoke("kim")
    assert workspace.logins.find(second.cookie) is None
    assert workspace.logins.find(mine.cookie) is not None
    workspace.context.clock = SetClock(mine.expires_at)
    assert workspace.logins.find(mine.cookie) is None


def test_a_client_with_too_many_failures_waits_and_others_do_not(workspace: Workspace) -> None:
    _, text = workspace.tokens.create("kim", "viewer")
    for _ in range(MAX_FAILURES):
        with pytest.raises(NotAuthenticated, match="the token is not valid"):
            workspace.logins.login("wrong", "10.0.0.1")
    with pytest.raises(TooManyLogins, match=r"too many failed logins from 10\.0\.0\.1"):
        workspace.logins.login(text, "10.0.0.1")  # even with a valid token: its text could be guessed otherwise
    assert workspace.logins.login(text, "10.0.0.2").name == "kim"
    move(workspace, WINDOW)
    assert workspace.logins.login(text, "10.0.0.1").name == "kim"


def test_failures_of_an_earlier_window_do_not_count(workspace: Workspace) -> None:
    store = LoginStore(workspace.context.database, workspace.context.clock)
    for _ in range(MAX_FAILURES - 1):
        store.count_failure("c")
    later = LoginStore(workspace.context.database, SetClock(NOW + WINDOW + timedelta(seconds=1)))
    later.count_failure("c")
    assert later.blocked_until("c") is None
    later.count_failure("d")
    assert len(everything(workspace.context.database, [schema.login_failure])["login_failure"]) == 2


def test_two_creations_of_one_name_at_the_same_time_make_one_token(workspace: Workspace) -> None:
    def create(handle: Database, clock: Clock, token_id: str) -> str:
        try:
            TokenStore(handle, clock).create(
                token_id, "kim", TokenRole.VIEWER, "hash", audit_entry(command="tokens create")
            )
        except ActRefused:
            return "refused"
        return "made"

    results = builders.race(
        workspace.context.database,
        lambda handle, clock: create(handle, clock, "a" * 16),
        lambda handle, clock: create(handle, clock, "b" * 16),
    )
    assert sorted(results) == ["made", "refused"]


def test_commands_create_list_and_revoke(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path)
    open_at(folder).close()
    made = in_process("tokens", "create", "kim", "--role", "operator", "--json", workspace=folder).document
    assert (made["name"], made["role"]) == ("kim", "operator")
    shown = in_process("tokens", "list", workspace=folder).stdout
    assert "kim" in shown
    assert made["token"] not in shown
    assert in_process("tokens", "revoke", "kim", "--json", workspace=folder).document == {"name": "kim", "changed": 1}
    assert "was revoked before" in in_process("tokens", "revoke", "kim", workspace=folder).stdout
    assert in_process("tokens", "create", "kim", "--role", "king", workspace=folder).code == 2


def test_the_sessions_of_a_name_are_ended_by_a_command(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path)
    open_at(folder).close()
    ws = load_workspace(folder)  # the command has another clock than the tests
    _, text = ws.tokens.create("kim", "viewer")
    mine = [ws.logins.login(text, "c") for _ in range(2)]
    person, _ = (ws.logins.begin_named(f"oidc:{name}@example.com", TokenRole.VIEWER) for name in ("ada", "bo"))
    refused = in_process("tokens", "logout", "nobody", workspace=folder)
    assert refused.code == 2
    assert "with a session: kim, oidc:ada@example.com, oidc:bo@example.com" in refused.stderr
    ended = in_process("tokens", "logout", "kim", "--json", workspace=folder).document
    assert ended == {"name": "kim", "ended": 2}
    shown = in_process("tokens", "logout", "oidc:ada@example.com", "--actor", "lee", workspace=folder).stdout
    assert shown.strip() == "ended 1 session of oidc:ada@example.com"
    assert len(everything(ws.context.database)["login_session"]) == 1  # that of bo
    assert [ws.logins.find(session.cookie) for session in (*mine, person)] == [None, None, None]
    assert ws.logins.login(text, "c").name == "kim"  # the token is still valid
    with pytest.raises(UsageError, match="has no session"):
        ws.logins.end_all("oidc:ada@example.com")
    ws.close()


def test_a_role_includes_the_roles_below_it() -> None:
    viewer, operator, admin = TokenRole
    assert (admin.includes(operator), operator.includes(viewer), viewer.includes(viewer)) == (True, True, True)
    assert (viewer.includes(operator), operator.includes(admin)) == (False, False)


def test_the_tokens_of_one_workspace_are_unknown_to_another(workspace: Workspace, tmp_path: Path) -> None:
    _, text = workspace.tokens.create("kim", "admin")
    other = open_at(write_workspace(tmp_path / "other"))
    assert other.tokens.find(text) is None
    other.close()


def test_revocation_deletes_the_sessions_of_the_token(workspace: Workspace) -> None:
    actors = Actors.on(workspace.context.database)
    _, text = workspace.tokens.create("kim", "viewer")
    workspace.logins.login(text, "c")
    workspace.tokens.revoke("kim")
    assert actors.rows(schema.login_session) == []
    with workspace.context.database.snapshot() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(schema.api_token)) == 1

"""The list of customers compared with a source: the difference, the file with it, and no duplicates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.loading import load_settings
from penstock.config.settings import Settings
from penstock.control.customers import plan_customers, write_customers
from penstock.errors import ActRefused, ConfigError, StateConflict
from penstock.source.protocol import Account
from penstock.source.registry import hooks_of
from support import builders

NOW = datetime(2026, 6, 10, 12, tzinfo=UTC)
HEAD = "id,name,time_zone,active_from,active_to\n"
FIELDS = [{"name": "clicks", "type": "long"}]


def load(folder: Path, text: str | None, **changes: Any) -> Settings:
    """A workspace whose customers are in a file with this text."""
    body = {
        "tenant": "acme",
        "workspace": "ads",
        "state": "sqlite:///state.db",
        "lake": "./lake",
        "customers": "customers.csv",
        "sources": {"ads": {"kind": "google_ads"}, "shop": {"kind": "demo"}},
        "queries": {"campaigns": {"source": "ads", "start_date": "2026-01-01", "fields": FIELDS}},
        **changes,
    }
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body))
    if text is not None:
        (folder / "customers.csv").write_bytes(text.encode())
    return load_settings(folder, {}, hooks_of)


def synced(folder: Path, text: str, *found: Account, **changes: Any) -> tuple[list[tuple[str, str]], str]:
    """The changes, and the file afterwards."""
    plan = plan_customers(load(folder, text, **changes), "ads", found, NOW)
    write_customers(plan)
    assert plan_customers(load(folder, None, **changes), "ads", found, NOW).changes == ()
    return [(c.id, str(c.kind)) for c in plan.changes], (folder / "customers.csv").read_bytes().decode()


def test_new_renamed_moved_and_gone_are_written_and_nothing_is_deleted(tmp_path: Path) -> None:
    text = HEAD + "3,Three,UTC,,\n1,One,UTC,2025-01-01,\n2,Two,UTC,,2026-02-02\n4,Four,Pacific/Auckland,,\n"
    found = (Account("1", "Uno", "Europe/Berlin"), Account("3", "Three", "UTC"), Account("5", "Five, Inc.", "UTC"))
    changes, after = synced(tmp_path, text, *found)
    assert changes == [("1", "renamed"), ("1", "moved"), ("5", "new"), ("4", "gone")]
    assert after == HEAD + (
        "3,Three,UTC,,\n"
        "1,Uno,Europe/Berlin,2025-01-01,\n"
        "2,Two,UTC,,2026-02-02\n"
        "4,Four,Pacific/Auckland,,2026-06-10\n"  # where the eleventh has begun
        '5,"Five, Inc.",UTC,,\n'
    )


def test_columns_line_ends_and_marks_stay_and_missing_columns_are_added(tmp_path: Path) -> None:
    changes, after = synced(tmp_path, "\ufeffactive_from,id\r\n2025-01-01,1\r\n", Account("2", "Two", "UTC"))
    assert changes == [("2", "new"), ("1", "gone")]
    assert after == ("\ufeffactive_from,id,name,time_zone,active_to\r\n2025-01-01,1,,,2026-06-09\r\n,2,Two,UTC,\r\n")


def test_a_list_with_a_first_line_only_is_filled(tmp_path: Path) -> None:
    assert synced(tmp_path, HEAD, Account("1", " A\n b ", "UTC"))[1] == HEAD + "1,A b,UTC,,\n"


def test_what_other_sources_serve_is_never_gone(tmp_path: Path) -> None:
    queries = {
        "campaigns": {"source": "ads", "start_date": "2026-01-01", "fields": FIELDS, "customers": ["1"]},
        "orders": {"source": "shop", "start_date": "2026-01-01", "fields": FIELDS, "customers": ["corner-shop"]},
    }
    text = HEAD + "1,One,UTC,,\ncorner-shop,Shop,UTC,,\n"
    assert synced(tmp_path, text, Account("1", "One", "UTC"), queries=queries) == ([], text)


def test_a_name_that_the_source_does_not_know_stays(tmp_path: Path) -> None:
    text = HEAD + "1,Ours,UTC,,\n"
    assert synced(tmp_path, text, Account("1", "", "UTC")) == ([], text)


def test_an_end_that_somebody_gave_stays_and_is_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD + "1,One,UTC,,2026-06-08\n2,Two,UTC,,2026-06-09\n3,Three,UTC,,\n")
    found = [Account(number, name, "UTC") for number, name in (("1", "One"), ("2", "Two"), ("3", "Three"))]
    plan = plan_customers(settings, "ads", found, NOW)
    assert (plan.changes, plan.ended) == ((), ("1",))


def test_an_end_is_never_before_the_beginning(tmp_path: Path) -> None:
    text = HEAD + "1,One,UTC,2026-07-01,\n2,Two,UTC,,\n"
    assert "1,One,UTC,2026-07-01,2026-07-01\n" in synced(tmp_path, text, Account("2", "Two", "UTC"))[1]


def test_a_source_that_lists_nobody_ends_nobody(tmp_path: Path) -> None:
    with pytest.raises(ActRefused, match="lists no account that matches, so nothing is changed"):
        plan_customers(load(tmp_path, HEAD + "1,One,UTC,,\n"), "ads", [], NOW)


def test_customers_that_are_not_in_one_file_are_refused_with_what_to_do(tmp_path: Path) -> None:
    found = [Account("1", "One", "UTC")]
    with pytest.raises(ConfigError, match=r"names 0 lists of customers.*write `customers: customers.csv`"):
        plan_customers(load(tmp_path, None, customers=[{"id": "1"}]), "ads", found, NOW)
    (tmp_path / "more.yaml").write_text("customers: [{id: '2'}]\n")
    with pytest.raises(ConfigError, match=r"outside customers.csv as well, for example 2: move them into it"):
        plan_customers(load(tmp_path, HEAD + "1,One,UTC,,\n", include=["more.yaml"]), "ads", found, NOW)


def test_the_plan_names_the_file_and_what_it_says_now(tmp_path: Path) -> None:
    text = HEAD + "1,One,UTC,,\n"
    plan = plan_customers(load(tmp_path, text), "ads", [Account("1", "One", "UTC")], NOW)
    assert (plan.file, plan.before, plan.after) == (tmp_path / "customers.csv", text, text)
    assert (plan.changes, plan.ended) == ((), ())


def test_an_end_is_past_when_a_later_day_is_over_where_the_account_lives(tmp_path: Path) -> None:
    """Noon in UTC of June 10: June 9 is over in UTC, June 10 on the first side of the date line."""
    text = HEAD + "1,A,UTC,,2026-06-08\n2,B,UTC,,2026-06-09\n3,C,Pacific/Kiritimati,,2026-06-09\n4,D,UTC,,2026-01-01\n"
    found = [Account("1", "A", "UTC"), Account("2", "B", "UTC"), Account("3", "C", "Pacific/Kiritimati")]
    assert plan_customers(load(tmp_path, text), "ads", found, NOW).ended == ("1", "3")


def test_an_account_that_would_spoil_the_list_is_refused(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD)
    with pytest.raises(ConfigError, match=r"account 1 cannot be listed: 'Mars/Base' is not a known time zone"):
        plan_customers(settings, "ads", [Account("1", "One", "Mars/Base")], NOW)


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    plan = plan_customers(load(tmp_path, HEAD), "ads", [Account("1", "One", "UTC")], NOW)
    with pytest.raises(StateConflict, match="changed since the preview"):
        write_customers(replace(plan, before=plan.before + "9,Nine,UTC,,\n"))
    assert (tmp_path / "customers.csv").read_text() == HEAD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["customers.csv", "penstock.yaml"]


accounts = st.dictionaries(
    st.integers(1, 6).map(str),
    st.tuples(st.text(max_size=8), st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Auckland"])),
    min_size=1,
)


@given(first=accounts, second=accounts)
def test_after_a_sync_there_is_nothing_to_sync_and_nobody_is_lost(
    first: dict[str, tuple[str, str]], second: dict[str, tuple[str, str]]
) -> None:
    with builders.quick_folder() as name:
        folder = Path(name)
        seen = set[str]()
        for number, found in enumerate((first, second)):
            listed = [Account(id_, *facts) for id_, facts in sorted(found.items())]
            synced(folder, HEAD if not number else (folder / "customers.csv").read_bytes().decode(), *listed)
            seen |= set(found)
        settings = load(folder, None)
        assert {customer.id for customer in settings.customers} == seen
        ended = {customer.id for customer in settings.customers if customer.active_to is not None}
        assert ended == set(first) - set(second)

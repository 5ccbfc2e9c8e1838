"""Cached customers: the same settings and the same errors as without the cache, and no secret on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.config import customer_cache, loading
from penstock.config.customer_cache import known_customers
from penstock.config.loading import load_settings
from penstock.config.settings import Settings
from penstock.config.source_hooks import SourceHooks
from penstock.errors import ConfigError
from penstock.user_cache import UserCache

HEAD = """\
tenant: acme
workspace: ads
state: postgresql+psycopg://kim:${PASSWORD}@host/db
lake: ./lake
"""
TAIL = """\
sources:
  demo: {kind: demo, token: "${TOKEN}"}
queries:
  daily:
    source: demo
    start_date: 2024-06-01
    fields: [{name: clicks, type: long}]
    options: {header: "${TOKEN}"}
"""
SECRETS = {"PASSWORD": "correct-horse-battery", "TOKEN": "staple-token-4711"}
IDS = [str(1_000_000_000 + number) for number in range(150)]
BLOCK = "customers:\n" + "".join(
    f"  - {{id: '{one}', name: 'Ünï {one}', time_zone: Europe/Berlin, active_from: 2024-01-02}}\n" for one in IDS
)
FLOW = "customers: [" + ",\n  ".join(f"{{id: '{one}', active_to: 2030-01-01}}" for one in IDS) + "]  # all\n"
CSV = "id,name,time_zone\n" + "".join(f"{one},Name,Asia/Tokyo\n" for one in IDS)

FORMS: dict[str, dict[str, str]] = {
    "block": {"penstock.yaml": HEAD + BLOCK + TAIL},
    "at the end": {"penstock.yaml": HEAD + TAIL + BLOCK},
    "flow": {"penstock.yaml": HEAD + FLOW + TAIL},
    "windows": {"penstock.yaml": (HEAD + BLOCK + TAIL).replace("\n", "\r\n")},
    "csv": {"penstock.yaml": HEAD + "customers: customers.csv\n" + TAIL, "customers.csv": CSV},
    "included": {
        "penstock.yaml": HEAD + "include: [more.yaml]\ncustomers:\n  - {id: '7'}\n" + TAIL,
        "more.yaml": BLOCK,
    },
    "an anchor that is used elsewhere": {
        "penstock.yaml": HEAD
        + BLOCK.replace("name: 'Ünï 1000000000'", "name: &n demo")
        + TAIL.replace("source: demo", "source: *n")
    },
}


def no_hooks(_kind: str) -> SourceHooks:
    return SourceHooks()


@pytest.fixture
def cache(tmp_path: Path) -> UserCache:
    return UserCache(tmp_path / "cache")


def written(folder: Path, files: Mapping[str, str]) -> Path:
    place = folder / "workspace"
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        (place / name).write_bytes(text.encode())
    return place


def stored(cache: UserCache) -> list[bytes]:
    assert cache.folder is not None
    return [file.read_bytes() for file in cache.folder.iterdir()] if cache.folder.exists() else []


def is_recalled(monkeypatch: pytest.MonkeyPatch, place: Path, cache: UserCache, **changes: Any) -> bool:
    """Whether the settings are loaded without a second reading of all customers."""
    calls: list[object] = []

    def known(*values: Any) -> Any:
        calls.append(values)
        return known_customers(*values)

    with monkeypatch.context() as patch:
        patch.setattr(loading, "known_customers", known)
        load_settings(place, changes.get("environ", SECRETS), no_hooks, cache)
    return not calls


@pytest.mark.parametrize("form", FORMS)
def test_settings_are_the_same_with_and_without_the_cache(
    form: str, tmp_path: Path, cache: UserCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = written(tmp_path, FORMS[form])
    plain = load_settings(place, SECRETS, no_hooks)
    assert len(plain.customers) >= len(IDS)
    for _ in range(2):
        found = load_settings(place, SECRETS, no_hooks, cache)
        assert found == plain
        assert (found.customers, found.customer_files) == (plain.customers, plain.customer_files)
        assert found.model_dump() == plain.model_dump()
    assert is_recalled(monkeypatch, place, cache) is (form != "an anchor that is used elsewhere")


@pytest.mark.parametrize("form", FORMS)
def test_no_secret_is_stored(form: str, tmp_path: Path, cache: UserCache) -> None:
    load_settings(written(tmp_path, FORMS[form]), SECRETS, no_hooks, cache)
    for data in stored(cache):
        assert not [
            name for name in (*SECRETS, *SECRETS.values(), "kim", "postgresql", "token") if name.encode() in data
        ]


@pytest.mark.parametrize(
    "files",
    [
        {"penstock.yaml": HEAD + BLOCK.replace("'Ünï 1000000003'", '"${TOKEN}"') + TAIL},
        {"penstock.yaml": HEAD + "customers: ${FILE}\n" + TAIL, "customers.csv": CSV},
        {"penstock.yaml": HEAD + "include: ['${PART}']\n" + TAIL, "more.yaml": BLOCK},
        {"penstock.yaml": HEAD + "customers:\n  - {id: '7'}\n" + TAIL},  # too few
    ],
    ids=["a customer", "the file of customers", "an included file", "few customers"],
)
def test_customers_that_depend_on_a_variable_are_not_stored(
    files: dict[str, str], tmp_path: Path, cache: UserCache
) -> None:
    environ = {**SECRETS, "FILE": "customers.csv", "PART": "more.yaml"}
    place = written(tmp_path, files)
    assert load_settings(place, environ, no_hooks, cache) == load_settings(place, environ, no_hooks)
    assert stored(cache) == []


@pytest.mark.parametrize("form", ["block", "csv", "included"])
def test_a_changed_file_is_read_again(form: str, tmp_path: Path, cache: UserCache) -> None:
    place = written(tmp_path, FORMS[form])
    load_settings(place, SECRETS, no_hooks, cache)
    name = {"block": "penstock.yaml", "csv": "customers.csv", "included": "more.yaml"}[form]
    written(tmp_path, {name: FORMS[form][name].replace("1000000007", "2000000007")})  # of the same size
    found = load_settings(place, SECRETS, no_hooks, cache)
    assert found == load_settings(place, SECRETS, no_hooks)
    assert "2000000007" in {customer.id for customer in found.customers}


def test_other_keys_are_read_each_time(tmp_path: Path, cache: UserCache, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(tmp_path, FORMS["block"])
    load_settings(place, SECRETS, no_hooks, cache)
    environ = {**SECRETS, "PASSWORD": "another"}
    assert is_recalled(monkeypatch, place, cache, environ=environ)
    assert "another" in load_settings(place, environ, no_hooks, cache).state.url


def message(place: Path, environ: Mapping[str, str], cache: UserCache | None) -> str:
    with pytest.raises(ConfigError) as error:
        load_settings(place, environ, no_hooks, cache)
    return str(error.value)


def test_errors_have_the_same_text_and_places_with_the_cache(tmp_path: Path, cache: UserCache) -> None:
    place = written(tmp_path, FORMS["block"])
    load_settings(place, SECRETS, no_hooks, cache)
    without = {"PASSWORD": "x"}  # the other variable is not set: the files have not changed
    expected = message(place, without, None)
    assert f"penstock.yaml:{len((HEAD + BLOCK).splitlines()) + 2}: " in expected
    assert message(place, without, cache) == expected
    for old, new in (("1000000009", "1000000008"), ("Europe/Berlin", "Europe/Berln"), ("type: long", "type: lng")):
        text = FORMS["block"]["penstock.yaml"].replace(old, new)
        written(tmp_path, {"penstock.yaml": text})
        assert message(place, SECRETS, cache) == message(place, SECRETS, None)
    written(tmp_path, FORMS["block"])
    assert load_settings(place, SECRETS, no_hooks, cache) == load_settings(place, SECRETS, no_hooks)


def test_an_invalid_file_is_never_stored(tmp_path: Path, cache: UserCache) -> None:
    message(written(tmp_path, {"penstock.yaml": HEAD + BLOCK + TAIL + "wrong: 1\n"}), SECRETS, cache)
    assert stored(cache) == []


def test_a_source_that_spells_ids_in_another_way_since_is_followed(tmp_path: Path, cache: UserCache) -> None:
    place = written(tmp_path, FORMS["block"])

    def loaded(rule: Any, cache: UserCache | None) -> Settings:
        return load_settings(place, SECRETS, lambda kind: SourceHooks("Demo", normalise_customer=rule), cache)

    for rule in (lambda text: text, lambda text: f"9{text}", lambda text: text[1:]):
        assert loaded(rule, cache) == loaded(rule, None)
        assert loaded(rule, cache) == loaded(rule, None)


def test_an_entry_of_other_code_is_ignored(tmp_path: Path, cache: UserCache, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(tmp_path, FORMS["csv"])
    load_settings(place, SECRETS, no_hooks, cache)
    assert is_recalled(monkeypatch, place, cache)
    monkeypatch.setattr(customer_cache, "_stamp", lambda: "another")
    assert not is_recalled(monkeypatch, place, cache)

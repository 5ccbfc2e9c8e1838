"""The rules that a source's class adds to the settings: how customer ids are spelled, and how long days are kept."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from penstock.config.loading import load_settings
from penstock.config.settings import SourceSettings
from penstock.config.source_hooks import SourceHooks
from penstock.control.api_sunset import ending_apis
from penstock.control.filters import customer_ids
from penstock.errors import ConfigError
from penstock.source.google_ads.version import DEFAULT, SUNSETS, versions
from penstock.source.horizon import horizon
from penstock.source.registry import hooks_of

CLASS = """
from penstock.config.values import Keeps

class Shop:
    title = "the shop"
    keeps = Keeps(days=10)

    @staticmethod
    def normalise_customer(text):
        if " " in text:
            raise ValueError("must be one word")
        return text.lower()
"""
WORKSPACE = """
tenant: acme
workspace: shops
state: sqlite:///state.db
lake: ./lake
customers: [{id: %s}, {id: Other}]
sources:
  shop: {kind: "%s:Shop"}
  demo: {kind: demo}
queries:
  orders: {source: shop, customers: [%s], fields: [{name: n, type: long}]}
  clicks: {source: demo, customers: [Other], fields: [{name: n, type: long}]}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of its own for each test, because Python and the registry remember what they loaded."""
    name = f"shop_of_{request.node.name}"
    (tmp_path / f"{name}.py").write_text(CLASS)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_customer_ids_have_the_spelling_of_their_source(tmp_path: Path, module: str) -> None:
    (tmp_path / "penstock.yaml").write_text(WORKSPACE % ("Corner", module, "Corner"))
    settings = load_settings(tmp_path, {}, hooks_of)
    assert [customer.id for customer in settings.customers] == ["corner", "Other"]
    assert settings.queries["orders"].customers == ("corner",)


def test_an_id_that_the_source_cannot_have_is_refused_at_its_place(tmp_path: Path, module: str) -> None:
    (tmp_path / "penstock.yaml").write_text(WORKSPACE % ("two words", module, "two words"))
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path, {}, hooks_of)
    reason = "customers[0].id: 'two words' must be one word, because orders fetches it from the shop"
    assert f"penstock.yaml:6: {reason}" in str(refused.value).splitlines()


def test_the_class_says_how_long_days_are_kept_unless_the_file_does(module: str) -> None:
    kind, today = f"{module}:Shop", date(2026, 6, 20)
    assert horizon(SourceSettings(name="shop", kind=kind), today) == date(2026, 6, 10)
    longer = SourceSettings.model_validate({"name": "shop", "kind": kind, "keeps": "1 month"})
    assert horizon(longer, today) == date(2026, 5, 20)


@pytest.mark.parametrize("text", ["raise OSError('no driver')", "class", "import no_such_library"])
def test_a_class_that_cannot_be_imported_has_no_hooks(tmp_path: Path, module: str, text: str) -> None:
    (tmp_path / "broken_source.py").write_text(text)
    assert hooks_of(f"broken_source:Shop{len(text)}") == hooks_of("nonsense") == hooks_of("demo") == SourceHooks()


def test_a_filter_accepts_an_account_as_google_ads_shows_it() -> None:
    assert customer_ids(["123-456-7890", "corner-shop", "1"]) == ("1234567890", "corner-shop", "1")


@pytest.mark.parametrize(
    ("options", "today", "expected"),
    [
        ({"api_version": "v23"}, date(2026, 12, 2), []),
        ({"api_version": "v23"}, date(2026, 12, 3), ["ends on 2027-02-01, in 60 days"]),
        ({"api_version": "v22"}, date(2026, 12, 3), ["ended on 2026-10-07"]),
        ({}, date(2027, 9, 2), ["ends on 2027-11-01, in 60 days"]),  # the default version
        ({"api_version": "v99"}, date(2030, 1, 1), []),
    ],
)
def test_an_api_that_ends_is_reported_sixty_days_before(
    options: dict[str, str], today: date, expected: list[str]
) -> None:
    sources = [
        SourceSettings(name="ads", kind="google_ads", options=options),
        SourceSettings(name="demo", kind="demo"),
    ]
    found = [end.describe(today) for end in ending_apis(sources, hooks_of, today)]
    for text, when in zip(found, expected, strict=True):
        assert text.startswith("ads: Google Ads API v")
        assert f"{when}: set `api_version` to a newer one" in text


def test_every_version_of_the_installed_client_has_an_end() -> None:
    assert set(versions()) <= set(SUNSETS)
    assert DEFAULT in versions()

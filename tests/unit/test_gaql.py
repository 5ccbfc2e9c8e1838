"""Adding days to a GAQL query without misreading it."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.source.google_ads.gaql import Statement, between, by_date, compose, parse

FIRST, LAST = date(2024, 6, 1), date(2024, 6, 3)
DAYS = "segments.date BETWEEN '2024-06-01' AND '2024-06-03'"


def asked(text: str) -> str:
    return between(by_date(parse(text)), FIRST, LAST)


def test_the_days_are_selected_restricted_and_ordered() -> None:
    assert asked("SELECT campaign.id, metrics.clicks FROM campaign") == (
        f"SELECT campaign.id, metrics.clicks, segments.date FROM campaign WHERE {DAYS} ORDER BY segments.date"
    )


def test_what_was_written_stays_as_it_was_written() -> None:
    text = """
        select segments.date, campaign.name
        from campaign
        where campaign.name = 'LIMIT 5 AND FROM "x" WHERE' and metrics.clicks BETWEEN 1 AND 5
          AND campaign.status IN ('ENABLED', "PAUSED") AND campaign.name NOT LIKE 'O\\'Neil%'
        order by metrics.clicks desc, campaign.id
        parameters include_drafts=true, omit_unselected_resource_names = true
    """
    found = parse(text)
    assert found == Statement(
        ("segments.date", "campaign.name"),
        "campaign",
        (
            "campaign.name = 'LIMIT 5 AND FROM \"x\" WHERE'",
            "metrics.clicks BETWEEN 1 AND 5",
            "campaign.status IN ('ENABLED', \"PAUSED\")",
            "campaign.name NOT LIKE 'O\\'Neil%'",
        ),
        ("metrics.clicks desc", "campaign.id"),
        None,
        ("include_drafts=true", "omit_unselected_resource_names = true"),
    )
    assert asked(text) == (
        f"SELECT segments.date, campaign.name FROM campaign WHERE {' AND '.join(found.conditions)} AND {DAYS}"
        " ORDER BY segments.date, metrics.clicks desc, campaign.id"
        " PARAMETERS include_drafts=true, omit_unselected_resource_names = true"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT campaign.id FROM campaign LIMIT 10", "LIMIT would leave rows out"),
        ("SELECT campaign.id FROM campaign WHERE segments.date DURING LAST_7_DAYS", "must not be restricted"),
        (
            "SELECT campaign.id FROM campaign WHERE metrics.clicks > 1 AND segments.month = '2024-06-01'",
            "segments.month",
        ),
        ("SELECT campaign.id FROM campaign ORDER BY segments.date DESC", "contradicts the order"),
        ("SELECT campaign.id", "no FROM"),
        ("FROM campaign", "no SELECT"),
        ("", "nothing in it"),
        ("UPDATE campaign", "must begin with SELECT"),
        ("SELECT FROM campaign", "nothing follows SELECT"),
        ("SELECT campaign.id FROM campaign WHERE", "nothing follows WHERE"),
        ("SELECT campaign.id FROM campaign, ad_group", "exactly one resource"),
        ("SELECT campaign.id, FROM campaign", "ends with a comma"),
        ("SELECT campaign.id campaign.name FROM campaign", "where a comma is expected"),
        ("SELECT * FROM campaign", "no meaning there"),
        ("SELECT id FROM campaign", "not the name of a field"),
        ("SELECT campaign.id FROM campaign; DROP", "';', which has no meaning"),
        ("SELECT campaign.id FROM campaign WHERE campaign.name = 'open", "quote that is not closed"),
        ("SELECT campaign.id FROM campaign WHERE campaign.id IN (1, 2", "bracket"),
        ("SELECT campaign.id FROM campaign WHERE campaign.id", "a field, an operator and a value"),
        ("SELECT campaign.id FROM campaign WHERE campaign.id = 1 AND AND campaign.id = 2", "a field, an operator"),
        ("SELECT campaign.id FROM campaign WHERE 1 = 1", "begins with the name of a field"),
        ("SELECT campaign.id FROM campaign WHERE campaign.id = 1 WHERE campaign.id = 2", "WHERE comes twice"),
        ("SELECT campaign.id FROM campaign ORDER BY campaign.id WHERE campaign.id = 2", "WHERE comes twice or after"),
        ("SELECT campaign.id FROM campaign ORDER campaign.id", "followed by BY"),
        ("SELECT campaign.id FROM campaign ORDER BY campaign.id upwards", "is not understood"),
        ("SELECT campaign.id FROM campaign PARAMETERS include_drafts=true,", "comma"),
    ],
)
def test_what_would_not_mean_what_it_says_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        asked(text)


def test_a_statement_is_composed_of_checked_parts() -> None:
    made = compose("ad_group", ["ad_group.id", "ad_group.id"], [" ad_group.status != REMOVED "])
    assert str(made) == "SELECT ad_group.id FROM ad_group WHERE ad_group.status != REMOVED"
    for resource, conditions, message in (
        ("ad group", [], "name of a resource"),
        ("campaign", ["campaign.id = 1 AND campaign.id = 2"], "more than one condition"),
        ("campaign", ["campaign.name = 'x"], "not closed"),
        ("campaign", [""], "nothing in it"),
    ):
        with pytest.raises(ConfigError, match=message):
            compose(resource, ["campaign.id"], conditions)


@given(
    values=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="'\\"), max_size=20), min_size=1, max_size=4
    )
)
def test_whatever_is_quoted_is_a_value(values: list[str]) -> None:
    conditions = [f"campaign.name != '{value}'" for value in values]
    text = f"SELECT campaign.id FROM campaign WHERE {' AND '.join(conditions)}"
    assert parse(text).conditions == tuple(conditions)
    assert str(parse(str(parse(text)))) == str(parse(text))

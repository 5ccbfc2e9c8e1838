"""Partition keys: text round-trips, and invalid text is refused with a message."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import partition
from penstock.errors import UsageError
from penstock.partition import AttemptKey, PartitionKey, new_run_id, new_ulid

KEY = PartitionKey("demo", "1000000001", "campaign_daily", date(2024, 6, 1))

names = st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True).filter(str.isascii)
customers = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=63).filter(
    lambda text: text[0] not in "_.-" and ".." not in text
)
keys = st.builds(PartitionKey, names, customers, names, st.dates())


@given(keys)
def test_a_key_reads_back_as_it_is_written(key: PartitionKey) -> None:
    assert PartitionKey.parse(str(key)) == key


@given(keys, keys)
def test_two_keys_are_the_same_when_they_are_written_the_same(one: PartitionKey, two: PartitionKey) -> None:
    assert (one == two) == (str(one) == str(two))


@given(st.text(string.ascii_letters + string.digits + "/_.- \n%'\"\\é\uff10", max_size=60))
def test_any_text_is_a_key_that_is_written_like_it_or_is_refused(text: str) -> None:
    try:
        key = PartitionKey.parse(text)
    except UsageError:
        return
    assert str(key) == text


def test_a_key_is_written_as_in_the_glossary() -> None:
    assert str(KEY) == "demo/1000000001/campaign_daily/2024-06-01"
    assert KEY.asset == "demo.campaign_daily"
    assert str(AttemptKey(KEY, partition.RunId("01X"))) == "demo/1000000001/campaign_daily/2024-06-01 (run 01X)"


def test_keys_sort_by_source_customer_query_and_date() -> None:
    ordered = [
        PartitionKey("a", "9", "z", date(2024, 6, 2)),
        PartitionKey("b", "1", "z", date(2024, 6, 1)),
        PartitionKey("b", "2", "a", date(2024, 6, 2)),
        PartitionKey("b", "2", "b", date(2024, 6, 1)),
        PartitionKey("b", "2", "b", date(2024, 6, 2)),
    ]
    assert sorted([*ordered[2:], *ordered[:2]]) == ordered


NAME_RULE = "use lower-case letters, digits and underscores, starting with a letter"
CUSTOMER_RULE = "use letters, digits, '.', '_' or '-', at most 63 of them"
DATE_RULE = "is not a date: write YYYY-MM-DD, for example 2024-06-01"

FULL_WIDTH = "\uff12\uff10\uff12\uff14-06-01"  # digits, but not ours

REFUSED = [
    ("", "'' is not a partition key: write source/customer_id/query_name/YYYY-MM-DD"),
    ("demo/1/daily", "'demo/1/daily' is not a partition key: write source/customer_id/query_name/YYYY-MM-DD"),
    ("demo/1/daily/2024-06-01/x", "'demo/1/daily/2024-06-01/x' is not a partition key"),
    ("Demo/1/daily/2024-06-01", f"source 'Demo' is not valid: {NAME_RULE}"),
    ("/1/daily/2024-06-01", f"source '' is not valid: {NAME_RULE}"),
    ("demo\n/1/daily/2024-06-01", f"source 'demo\\n' is not valid: {NAME_RULE}"),
    ("dé/1/daily/2024-06-01", f"source 'dé' is not valid: {NAME_RULE}"),
    ("demo/1/1daily/2024-06-01", f"query '1daily' is not valid: {NAME_RULE}"),
    ("demo/1/dai ly/2024-06-01", f"query 'dai ly' is not valid: {NAME_RULE}"),
    ("demo//daily/2024-06-01", f"customer id '' is not valid: {CUSTOMER_RULE}"),
    ("demo/../daily/2024-06-01", f"customer id '..' is not valid: {CUSTOMER_RULE}"),
    ("demo/a..b/daily/2024-06-01", f"customer id 'a..b' is not valid: {CUSTOMER_RULE}"),
    ("demo/-1/daily/2024-06-01", f"customer id '-1' is not valid: {CUSTOMER_RULE}"),
    ("demo/1;drop/daily/2024-06-01", f"customer id '1;drop' is not valid: {CUSTOMER_RULE}"),
    ("demo/" + "1" * 64 + "/daily/2024-06-01", f"customer id '{'1' * 64}' is not valid: {CUSTOMER_RULE}"),
    ("demo/1/daily/2024-6-1", f"date '2024-6-1' {DATE_RULE}"),
    ("demo/1/daily/20240601", f"date '20240601' {DATE_RULE}"),
    ("demo/1/daily/2024-02-30", f"date '2024-02-30' {DATE_RULE}"),
    ("demo/1/daily/0000-01-01", f"date '0000-01-01' {DATE_RULE}"),
    (f"demo/1/daily/{FULL_WIDTH}", f"date '{FULL_WIDTH}' {DATE_RULE}"),
    ("demo/1/daily/2024-W22-6", f"date '2024-W22-6' {DATE_RULE}"),
    ("demo/1/daily/2024-06-01T00:00", f"date '2024-06-01T00:00' {DATE_RULE}"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_an_invalid_key_is_refused_with_a_message(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="^" + re.escape(words)):
        PartitionKey.parse(text)


def test_a_name_that_is_too_long_is_refused() -> None:
    assert partition.name("a" * 63) == "a" * 63
    with pytest.raises(UsageError, match="at most 63"):
        partition.name("a" * 64)


@pytest.mark.parametrize(
    ("check", "text", "words"),
    [
        (lambda text: partition.name(text, "workspace"), "My", "workspace 'My' is not valid"),
        (lambda text: partition.day(text, "--since"), "yesterday", f"--since 'yesterday' {DATE_RULE}"),
    ],
)
def test_an_invalid_value_is_refused_with_a_message(check: Callable[[str], object], text: str, words: str) -> None:
    with pytest.raises(UsageError, match="^" + re.escape(words)):
        check(text)


def test_a_new_run_id_is_a_run_id_and_never_the_same() -> None:
    made = [new_run_id() for _ in range(100)]
    assert len(set(made)) == 100
    assert [partition.run_id(text) for text in made] == made
    assert len(new_ulid()) == 26


@pytest.mark.parametrize(
    "text", ["", "7", "01ARZ3NDEKTSV4RRFFQ69G5FA", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "01arz3ndektsv4rrffq69g5fav"]
)
def test_what_is_not_a_run_id_is_refused_with_where_to_find_one(text: str) -> None:
    with pytest.raises(UsageError, match=rf"^run '{text}' is not a run id: .*`penstock state history`"):
        partition.run_id(text)

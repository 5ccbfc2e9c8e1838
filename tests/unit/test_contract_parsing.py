"""Payloads become typed rows, or complaints with the line; an invalid payload does not affect the others."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.assets import Query
from penstock.config.checks import Field, check_from_mapping
from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.contract.parse import parse_many

FIELDS = (
    Field(name="id", type="long"),
    Field(name="share", type="double"),
    Field(name="label", type="string"),
    Field(name="live", type="boolean"),
    Field(name="day", type="date"),
    Field(name="at", type="timestamp"),
    Field(name="price", type="decimal(10,2)"),
    Field(name="tags", type="array<string>"),
    Field(name="geo", type="struct<zone: long, stops: array<struct<at: timestamp, day: date, price: decimal(10,2)>>>"),
)


def contract(**changes: Any) -> Contract:
    return Contract.of(
        Query(**{"name": "q", "source": "demo", "start_date": date(2024, 6, 1), "fields": FIELDS, **changes})
    )


def lines(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def test_every_type_is_read_as_declared() -> None:
    row = {
        "id": 7,
        "share": 1,
        "label": "ü",
        "live": True,
        "day": "2024-06-01",
        "at": "2024-06-01T10:00:00+02:00",
        "price": "1.50",
        "tags": ["a", None, "\0"],
        "geo": {"stops": [{"at": "2024-06-01", "price": 2}, None]},
    }
    parsed = parse_many([lines(row, {})], contract())
    assert parsed.complaints == {}
    assert parsed.table.to_pylist() == [
        {
            "id": 7,
            "share": 1.0,
            "label": "ü",
            "live": True,
            "day": date(2024, 6, 1),
            "at": datetime(2024, 6, 1, 8, tzinfo=UTC),
            "price": Decimal("1.50"),
            "tags": ["a", None, "\0"],
            "geo": {
                "zone": None,
                "stops": [{"at": datetime(2024, 6, 1, tzinfo=UTC), "day": None, "price": Decimal("2.00")}, None],
            },
        },
        dict.fromkeys(row),
    ]


BAD: dict[bytes, tuple[str, str]] = {
    b'{"id": "7"}': ("type", "id is not a whole number of at most 64 bits"),
    b'{"id": 1.5}': ("type", "id is not a whole number of at most 64 bits"),
    b'{"id": 99999999999999999999}': ("type", "id is not a whole number of at most 64 bits"),
    b'{"id": true}': ("type", "id is not a whole number of at most 64 bits"),
    b'{"share": "x"}': ("type", "share is not a number"),
    b'{"live": 1}': ("type", "live is not true or false"),
    b'{"day": "01.06.2024"}': ("type", "day is not a date like 2024-06-01"),
    b'{"at": "noon"}': ("type", "at is not a time like 2024-06-01T12:00:00Z"),
    b'{"price": "1.505"}': ("type", "price is not a decimal(10,2) as number or string"),
    b'{"label": {"deep": 1}}': ("type", "label is not a string"),
    b'{"id": 1, "id": 2}': ("json", "not valid JSON (a field stands twice in one row)"),
    b'{"share": NaN}': ("json", "not valid JSON (NaN is not a JSON number)"),
    b'{"id": 1': ("json", "not valid JSON (Expecting ',' delimiter)"),
    b'{"id": 1} {"id": 2}': ("json", "not valid JSON (Extra data)"),
    b'{"label": "\xff"}': ("json", "not valid JSON (not UTF-8)"),
    b"\xef\xbb\xbf{}": ("json", "not valid JSON (Unexpected UTF-8 BOM"),
    b"null": ("json", "not a JSON object"),
    b"[1]": ("json", "not a JSON object"),
    b"   ": ("json", "not valid JSON (Expecting value)"),
    b'{"label": "a\x00b"}': ("json", "not valid JSON (Invalid control character at)"),
    b'{"share": 1e400}': ("type", "share is not a number"),
    b'{"label": "\\ud800"}': ("type", "label is not a string"),
    b'{"surprise": 1}': ("unknown_fields", "field 'surprise' is not in the contract"),
    b"[" * 100_000: ("json", "not valid JSON (nested too deeply)"),
    b'{"tags": "a"}': ("type", "tags is not a JSON array"),
    b'{"tags": ["a", 1]}': ("type", "tags[] is not a string"),
    b'{"geo": [1]}': ("type", "geo is not a JSON object"),
    b'{"geo": {"zone": "x"}}': ("type", "geo.zone is not a whole number"),
    b'{"geo": {"stops": [{"at": "2024-06-01"}, {"at": "noon"}]}}': ("type", "geo.stops[].at is not a time like"),
    b'{"geo": {"stops": [{"price": "1.505"}]}}': ("type", "geo.stops[].price is not a decimal(10,2)"),
    b'{"geo": {"zone": 99999999999999999999}}': ("type", "geo.zone is not a whole number of at most 64 bits"),
    b'{"geo": {"zone": 1, "zone": 2}}': ("json", "a field stands twice in one row"),
    b'{"geo": {"surprise": 1}}': ("unknown_fields", "field 'geo.surprise' is not in the contract"),
    b'{"tags": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": ("json", "not valid JSON (nested too deeply)"),
    b'{"day": "0000-01-01"}': ("type", "day is not a date"),
    b'{"at": "9999-12-31T23:00:00-05:00"}': ("type", "at is not a time"),
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: str(line[:24]))
def test_a_bad_line_is_named_and_the_neighbours_are_read(line: bytes) -> None:
    good = lines({"id": 1}, {"id": 2})
    parsed = parse_many([good, lines({"id": 3}, line), good], contract())
    [complaint] = parsed.complaints[1]
    check, words = BAD[line]
    assert (complaint.check, complaint.line, complaint.count) == (check, 2, 1)
    assert words in complaint.message
    assert list(parsed.complaints) == [1]
    assert parsed.table.column("id").to_pylist() == [1, 2, 1, 2]
    assert parsed.owner.tolist() == [0, 0, 2, 2]
    assert parsed.line.tolist() == [1, 2, 1, 2]


def test_complaints_are_counted_and_show_the_first_example() -> None:
    payload = lines({"id": 1}, {"id": "a"}, {"id": "b", "share": "c"}, b"{")
    parsed = parse_many([payload], contract())
    assert [(c.check, c.count, c.line, c.example) for c in parsed.complaints[0]] == [
        ("type", 2, 2, '{"id": "a"}'),
        ("type", 1, 3, '{"id": "b", "share": "c"}'),
        ("json", 1, 4, "{"),
    ]
    assert isinstance(parsed.complaints[0][0], Complaint)


def test_policies_for_unknown_and_missing_fields() -> None:
    payload = lines({"id": 1, "surprise": {"deep": [1]}})
    assert parse_many([payload], contract(unknown_fields="ignore")).complaints == {}
    strict = parse_many(
        [lines(dict.fromkeys([f.name for f in FIELDS])), lines({"id": 1})], contract(missing_fields="reject")
    )
    assert list(strict.complaints) == [1]
    assert "field 'share' is missing" in [c.message for c in strict.complaints[1]]


def test_a_marker_of_ours_inside_a_payload_shifts_nothing() -> None:
    parsed = parse_many([lines({"_payload": 1}), lines({"id": 2})], contract(unknown_fields="ignore"))
    assert parsed.complaints == {}
    assert parsed.table.column("id").to_pylist() == [None, 2]
    assert parsed.owner.tolist() == [0, 1]


def test_empty_payloads_are_valid() -> None:
    parsed = parse_many([b"", lines({"id": 1}), b""], contract())
    assert (parsed.complaints, parsed.owner.tolist()) == ({}, [1])
    assert parse_many([b"", b""], contract()).table.num_rows == 0


rows = st.fixed_dictionaries(
    {},
    optional={"id": st.integers(-(2**63), 2**63 - 1), "label": st.text(max_size=5), "live": st.none() | st.booleans()},
)
junk = st.sampled_from([b"{", b"null", b'{"id":"x"}', b'{"id":1}{"id":2}', b"[]", b'"', b'{"id":1},', b"}"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(rows | junk, max_size=4), max_size=6))
def test_many_payloads_at_once_are_read_as_each_one_alone(payloads: list[list[Any]]) -> None:
    together = parse_many([lines(*payload) for payload in payloads], contract())
    for index, payload in enumerate(payloads):
        alone = parse_many([lines(*payload)], contract())
        assert together.complaints.get(index, []) == alone.complaints.get(0, [])
        mine = together.table.filter(together.owner == index).to_pylist() if len(together.owner) else []
        assert mine == alone.table.to_pylist()
        if not any(isinstance(row, bytes) for row in payload):
            assert alone.complaints == {}
            assert [{k: v for k, v in row.items() if v is not None} for row in alone.table.to_pylist()] == [
                {k: v for k, v in row.items() if v is not None} for row in payload
            ]


def test_a_contract_survives_the_database() -> None:
    checks: list[dict[str, Any]] = [
        {"unique": ["id"]},
        {"expression": "id > 0", "name": "positive"},
        {"range": {"field": "day", "min": "2024-01-01"}},
        {"allowed": {"field": "label", "values": ["a", "b"]}},
        {"rows": {"min": 1}},
        {"shrink": {"max_drop": 0.5}},
        {"required": ["id"]},
        {"not_null_share": {"field": "label", "min": 0.9}, "severity": "warn"},
        {"freshness": {"field": "at", "max_lag": "36h"}},
        {"references": {"field": "id", "to": "demo.other"}},
        {"references": {"fields": ["id", "label"], "to": "demo.other", "to_fields": ["x", "y"]}, "name": "both"},
        {"compare": {"field": "share", "function": "avg", "max_change": 0.5}, "severity": "warn", "name": "steady"},
        {"compare": {"function": "count", "max_change": 1.5}},
    ]
    known = contract(checks=tuple(check_from_mapping(check) for check in checks), options={"gaql": "SELECT x"})
    again = Contract.from_body(json.loads(json.dumps(known.body())))
    assert again == known
    assert again.fingerprint == known.fingerprint
    assert again.fingerprint != contract().fingerprint


def test_words_that_look_dangerous_inside_text_are_just_text() -> None:
    """NaN is refused as a number; as a part of a name it must neither be refused nor make its rows disappear."""
    payload = lines({"id": 1, "label": "NaN bread, Infinity pool"}, {"id": 2})
    parsed = parse_many([lines({"id": 0}), payload, lines({"id": 3})], contract())
    assert parsed.complaints == {}
    assert parsed.table.column("id").to_pylist() == [0, 1, 2, 3]
    assert parsed.owner.tolist() == [0, 1, 1, 2]
    assert parse_many([b' {"id": 4}\n'], contract()).table.column("id").to_pylist() == [4]


def test_numbers_parsed_line_by_line_keep_every_digit() -> None:
    """A payload takes the slow path for a word in a text; its numbers must be those that load will read."""
    row = b'{"label": "NaN", "share": 123456789012345678901234567890, "price": 12345678.90}'
    [slow] = parse_many([row + b"\n"], contract()).table.to_pylist()
    [fast] = parse_many([row.replace(b"NaN", b"Nan") + b"\n"], contract()).table.to_pylist()
    assert (slow["share"], slow["price"]) == (fast["share"], fast["price"])
    assert slow["price"] == Decimal("12345678.90")
    wide = contract(
        fields=(Field(name="price", type="decimal(20,2)"), Field(name="x", type="long")), missing_fields="reject"
    )
    parsed = parse_many([b'{"price": 12345678901234567.89, "x": null}\n'], wide)
    assert parsed.complaints == {}
    assert parsed.table.column("price").to_pylist() == [Decimal("12345678901234567.89")]


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


days = st.dates().map(str)
moments = st.builds(
    lambda day, clock, zone: f"{day}{clock}{zone if clock else ''}",
    st.dates(datetime(2, 1, 1, tzinfo=UTC).date(), datetime(9998, 12, 31, tzinfo=UTC).date()),
    st.sampled_from(["", "T10", " 23:59", "T10:00:00", "T10:00:00.5", "T23:59:59.999999"]),
    st.sampled_from(["", "Z", "+02", "-0330", "+23:59"]),
)
prices = st.decimals(-(10**7), 10**7, places=2).map(str) | st.integers(-1000, 1000) | st.sampled_from([0.5, 1e3])
stops = st.fixed_dictionaries({}, optional={"at": optional(moments), "day": optional(days), "price": optional(prices)})
anything = st.fixed_dictionaries(
    {},
    optional={
        "id": optional(st.integers(-(2**63), 2**63 - 1)),
        "share": optional(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)),
        "label": optional(st.text(max_size=4)),
        "live": optional(st.booleans()),
        "day": optional(days),
        "at": optional(moments),
        "price": optional(prices),
        "tags": optional(st.lists(optional(st.text(max_size=2)), max_size=3)),
        "geo": optional(
            st.fixed_dictionaries(
                {},
                optional={
                    "zone": optional(st.integers(-5, 5)),
                    "stops": optional(st.lists(optional(stops), max_size=2)),
                },
            )
        ),
    },
)
surprises = st.dictionaries(
    st.sampled_from(["new", "été", "a.b", "ident"]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(-1, 1) | st.text(max_size=2),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=1), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=2,
)
POLICIES: list[dict[str, Any]] = [
    {},
    {"unknown_fields": "keep"},
    {"fields": tuple(f.model_copy(update={"default": d}) for f, d in zip(FIELDS, (7, 0.5, "ü", False, "2024-06-01",
     "2024-06-01T10:00:00+02:00", "1.50", ["a"], {"zone": 1, "stops": []}), strict=True)), "unknown_fields": "keep"},
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(anything, surprises), min_size=1, max_size=4), st.sampled_from(POLICIES))
def test_arrow_and_line_by_line_parsing_agree(found: list[tuple[Any, Any]], policies: dict[str, Any]) -> None:
    """Text that looks like a number Arrow must not see sends a payload to the slow parser."""
    keeps = policies.get("unknown_fields") == "keep"
    word = Field(name="word", type="string")
    judged = contract(**{**policies, "fields": (*policies.get("fields", FIELDS), word)})
    rows_ = [{**row, **(extra if keeps else {})} for row, extra in found]
    fast, patient = (parse_many([lines(*({**row, "word": text} for row in rows_))], judged) for text in ("Nan", "NaN"))
    assert fast.complaints == patient.complaints == {}
    assert fast.table.drop_columns(["word"]).equals(patient.table.drop_columns(["word"]))
    loaded = parse_many([lines(*({**row, "word": "NaN"} for row in rows_))], judged, accepted_before=True)
    assert loaded.table.equals(patient.table)
    if keeps:
        extras = [json.loads(text) if text else {} for text in fast.table.column("_extra").to_pylist()]
        assert extras == [extra for _, extra in found]


def test_a_default_stands_in_for_a_field_that_is_missing_and_not_for_null() -> None:
    fields = (Field(name="id", type="long"), Field(name="country", type="string", default="DE"))
    payload = lines({"id": 1}, {"id": 2, "country": None}, {"id": 3, "country": "FR"},
                    b'{"id": 4, "c\\u006funtry": null}',
                    {"id": 5, "other": "\"country\""})  # fmt: skip
    for policy in ("ignore", "keep"):
        parsed = parse_many([payload, lines({})], contract(fields=fields, unknown_fields=policy))
        assert parsed.table.column("country").to_pylist() == ["DE", None, "FR", None, "DE", "DE"]
    hidden = lines(
        b'{"x": 1, "x": "\\"country\\""}', b'{"y": "\\"country\\"", "x": ' + b"[" * 99_999 + b"]" * 99_999 + b"}"
    )
    complaints = parse_many([hidden], contract(fields=fields, unknown_fields="ignore")).complaints[0]
    assert [(c.line, c.check) for c in complaints] == [(1, "json"), (2, "json")]
    strict = contract(fields=fields, unknown_fields="ignore", missing_fields="reject")
    assert parse_many([payload], strict).complaints == {}
    assert [c.message for c in parse_many([lines({})], strict).complaints[0]] == ["field 'id' is missing"]


def test_unknown_fields_are_kept_under_their_path() -> None:
    payload = lines(
        b'{"id": 1, "z": 123456789012345678901234567890, "a": 1.10, "geo": {"zone": 1, "n": [1]}}',
        {"id": 2},
        {"geo": {"stops": [{}, {"b": "\0"}]}},
    )
    parsed = parse_many([payload, lines({"id": 3})], contract(unknown_fields="keep"))
    assert parsed.table.column("_extra").to_pylist() == [
        '{"a":1.10,"geo":{"n":[1]},"z":123456789012345678901234567890}',
        None,
        '{"geo":{"stops":{"1":{"b":"\\u0000"}}}}',
        None,
    ]
    hostile = lines(b'{"x": "\\ud800"}', b'{"x": ' + b"[" * 400 + b"]" * 400 + b"}", b'{"x": 1, "x": 2}')
    [half, deep, twice] = parse_many([hostile], contract(unknown_fields="keep")).complaints[0]
    assert (half.check, half.line) == ("unknown_fields", 1)
    assert "cannot be kept" in half.message
    assert deep.line == 2
    assert twice.message == "not valid JSON (a field stands twice in one row)"


def test_policies_hold_inside_structs() -> None:
    payload = lines({"geo": {"surprise": 1}})
    ignored = parse_many([payload], contract(unknown_fields="ignore"))
    assert ignored.table.column("geo").to_pylist() == [{"zone": None, "stops": None}]
    fields = (Field(name="geo", type="struct<zone: long, day: date>"),)
    strict = contract(fields=fields, missing_fields="reject")
    assert parse_many([lines({"geo": {"zone": None, "day": None}}, {"geo": None})], strict).complaints == {}
    [complaint] = parse_many([lines({"geo": {"zone": 1}})], strict).complaints[0]
    assert complaint.message == "field 'geo.day' is missing"


def test_the_number_of_different_complaints_is_limited() -> None:
    payload = lines(*({f"field{n}": 1} for n in range(5_000)))
    complaints = parse_many([payload], contract()).complaints[0]
    assert len(complaints) == 101
    assert (complaints[-1].check, complaints[-1].count) == ("more", 4_900)


def test_the_fingerprint_of_a_known_contract_stays_the_same() -> None:
    """Attempts refer to contracts by fingerprint: a release must not make every partition look outdated."""
    old = Contract.of(
        Query(
            name="campaign_daily",
            source="demo",
            fields=(Field(name="campaign_id", type="long", required=True), Field(name="clicks", type="long")),
            checks=(
                check_from_mapping({"unique": ["campaign_id"]}),
                check_from_mapping({"shrink": {"max_drop": 0.5}}),
            ),
        )
    )
    assert old.fingerprint == "7533a4593b9c7a1b7ccd7fb392cc3634"


def test_a_stored_body_is_compared_by_what_it_says_and_not_by_how_it_is_written() -> None:
    today = Contract.of(
        Query(
            name="campaign_daily",
            source="demo",
            fields=(Field(name="campaign_id", type="long", required=True), Field(name="clicks", type="long")),
            checks=(check_from_mapping({"rows": {"min": 1}}),),
        )
    )
    body = today.body()
    wordy = {
        **body,
        "fields": [{**field, "default": None} for field in body["fields"]],
        "checks": [{"rows": {"min": 1, "max": None}}],
    }
    other = {**body, "checks": []}
    strange = {**body, "checks": [{"of_a_release_to_come": {}}]}
    bodies = {"old": wordy, "other": other, "strange": strange, "same": body, "of another": {**body, "source": "x"}}
    assert today.same_as(bodies) == ["old", "same"]

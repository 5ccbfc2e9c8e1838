"""Rows satisfy the contract that is inferred from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.assets import query_to_mapping
from penstock.contract.contract import Contract
from penstock.contract.documents import as_yaml, checked_query, queries_in
from penstock.contract.infer import infer
from penstock.errors import DataError
from penstock.pipeline.contract_trial import try_contract
from penstock.source.registry import hooks_of


def lines(*rows: Any) -> list[bytes]:
    return [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]


def types(*rows: Any) -> dict[str, str]:
    return {field["name"]: field["type"] for field in infer(lines(*rows)).fields}


def test_the_narrowest_type_that_fits_is_proposed() -> None:
    assert types(
        {"a": 1, "b": 1, "c": 2**70, "d": "2024-06-01", "e": "2024-06-01T10:00:00Z", "f": "x", "g": True, "h": None},
        {"a": 2, "b": 1.5, "c": 1, "d": "2024-06-02", "e": "2024-06-01", "f": "2024-06-01", "g": False, "h": None},
    ) == {
        "a": "long",
        "b": "double",
        "c": "decimal(38,0)",
        "d": "date",
        "e": "timestamp",
        "f": "string",
        "g": "boolean",
        "h": "string",
    }
    assert types({"a": [1, None], "b": {"x": [], "y": {"z": "2024-06-01"}}}, {"a": [2.5]}) == {
        "a": "array<double>",
        "b": "struct<x: array<string>, y: struct<z: date>>",
    }


def test_fields_that_are_always_there_are_required_and_ids_are_unique() -> None:
    rows = [{"name": f"n{n % 2}", "campaign_id": n, "clicks": n * 10, "loss": -n, "note": None} for n in range(4)]
    proposal = infer(lines(*rows, {**rows[0], "campaign_id": 9, "note": "x"}))
    assert [field["name"] for field in proposal.fields if field.get("required")] == [
        "name", "campaign_id", "clicks", "loss",
    ]  # fmt: skip
    assert proposal.checks == [
        {"unique": ["campaign_id"]},
        {"range": {"field": "clicks", "min": 0}},
        {"rows": {"min": 1}},
        {"shrink": {"max_drop": 0.5}},
    ]
    pairs = infer(lines(*({"day": f"2024-06-0{d}", "network": n} for d in (1, 2) for n in ("a", "b"))))
    assert pairs.checks[0] == {"unique": ["day", "network"]}


def test_fields_without_a_type_are_kept_and_noted() -> None:
    proposal = infer(
        lines({"id": 1, "Name": "x", "mixed": 1, "customer_id": "7", "geo": {"x": 1, "y.z": 2}, "empty": {}},
              {"id": 2, "mixed": "a"}, b"[1]", b"{")
    )  # fmt: skip
    assert [field["name"] for field in proposal.fields] == ["id", "geo"]
    assert proposal.as_query("demo")["unknown_fields"] == "keep"
    said = " | ".join(proposal.notes)
    for words in ("2 lines are not JSON objects", "'Name' cannot", "mixed mixes numbers and text", "'customer_id'",
                  "'geo.y.z' cannot", "empty has values"):  # fmt: skip
        assert words in said
    with pytest.raises(DataError, match="no row"):
        infer([])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.dates().map(str)
    | st.sampled_from(["2024-06-01T10:00:00Z", "\ud800", "9999-12-31T23:00:00-05:00", "NaN"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "A", "a.b", ""]), inner, max_size=3)
    ),
    max_leaves=5,
)
rows = st.dictionaries(st.sampled_from(["id", "a", "b", "Bad", "schema_version", "_x"]), values, max_size=4)


@settings(max_examples=200, deadline=None)
@given(found=st.lists(rows, min_size=1, max_size=5))
def test_its_own_rows_satisfy_a_proposal_that_can_be_loaded(
    found: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("infer")
    payload = folder / "rows.jsonl"
    payload.write_bytes(b"".join(line + b"\n" for line in lines(*found)))
    try:
        proposal = infer(payload.read_bytes().splitlines())
    except DataError:  # nothing in these rows has a name or a type
        return
    query = checked_query("q", proposal.as_query("demo"), "test")
    file = folder / "query.yaml"
    file.write_text(as_yaml({"q": query_to_mapping(query)}, list(proposal.notes)))
    [(name, loaded)] = queries_in(file, {}, hooks_of)[0].items()
    assert (name, loaded) == ("q", query)
    trial = try_contract(Contract.of(loaded), payload, None, None)
    assert [c for c in trial.complaints if "cannot be kept" not in c.message] == []


def test_a_key_is_not_guessed_from_a_single_row() -> None:
    assert infer(lines({"id": 1})).checks == [{"rows": {"min": 1}}, {"shrink": {"max_drop": 0.5}}]


def test_notes_are_comments(tmp_path: Path) -> None:
    text = as_yaml({"q": {"source": "demo", "fields": [{"name": "a", "type": "struct<x: long>"}]}}, ["one", "two"])
    assert text.startswith("# one\n# two\nqueries:")
    assert yaml.safe_load(text)["queries"]["q"]["fields"] == [{"name": "a", "type": "struct<x: long>"}]

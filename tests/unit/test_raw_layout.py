"""Names and seals of raw partitions: they round-trip, and other text is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RawError
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.raw.layout import parse_run_folder, partition_folder, payload_name, run_folder
from penstock.raw.seal import Seal

ULID = "01HZ0000000000000000000000"
KEY = PartitionKey("demo", "1000000001", "campaign_daily", date(2024, 6, 1))
SEAL = Seal(
    payload=payload_name(ULID),
    source="demo",
    customer_id="1000000001",
    query_name="campaign_daily",
    logical_date=date(2024, 6, 1),
    run_id=RunId(ULID),
    extracted_at=datetime(2024, 6, 2, 3, 4, 5, tzinfo=UTC),
    schema_version="v1",
    record_count=2,
    payload_sha256="0" * 64,
    payload_bytes=36,
    api_version="v23",
    query_hash="abc",
    time_zone="Europe/Berlin",
    penstock_version="0.1.0",
)

names = st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True)
customers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True).filter(lambda text: ".." not in text)
ulids = st.from_regex(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", fullmatch=True)
keys = st.builds(PartitionKey, names, customers, names, st.dates())
attempts = st.builds(AttemptKey, keys, ulids.map(RunId))
moments = st.builds(
    lambda seconds, micros, hours: datetime.fromtimestamp(seconds, timezone(timedelta(hours=hours))).replace(
        microsecond=micros
    ),
    st.integers(0, 2**34),
    st.integers(0, 999_999),
    st.sampled_from([0, 5, -11]),
)
texts = st.text(max_size=20).filter(lambda text: text.isprintable())
seals = st.builds(
    Seal,
    payload=ulids.map(payload_name),
    source=names,
    customer_id=customers,
    query_name=names,
    logical_date=st.dates(),
    run_id=ulids.map(RunId),
    extracted_at=moments,
    schema_version=texts,
    record_count=st.integers(0, 2**53),
    payload_sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    payload_bytes=st.integers(0, 2**53),
    api_version=texts,
    query_hash=texts,
    time_zone=texts,
    penstock_version=texts,
)


def test_the_folder_of_a_run_is_the_one_in_the_contract() -> None:
    assert partition_folder(KEY) == (
        "raw/demo/customer_id=1000000001/query_name=campaign_daily/logical_date=2024-06-01"
    )
    assert run_folder(AttemptKey(KEY, RunId(ULID))) == f"{partition_folder(KEY)}/run_id={ULID}"


@given(attempts)
def test_a_run_folder_reads_back_as_its_attempt(attempt: AttemptKey) -> None:
    assert parse_run_folder(run_folder(attempt)) == attempt


@pytest.mark.parametrize(
    "path",
    [
        "",
        "raw/demo",
        f"raw/demo/customer_id=1/query_name=q/logical_date=2024-06-01/run_id={ULID}/",
        f"raw/demo/customer_id=1/query_name=q/logical_date=2024-06-31/run_id={ULID}",
        f"raw/demo/customer_id=../query_name=q/logical_date=2024-06-01/run_id={ULID}",
        f"raw/Demo/customer_id=1/query_name=q/logical_date=2024-06-01/run_id={ULID}",
        "raw/demo/customer_id=1/query_name=q/logical_date=2024-06-01/run_id=7",
    ],
)
def test_a_folder_that_is_no_run_is_named_in_the_error(path: str) -> None:
    with pytest.raises(RawError, match=r"is not the folder of a raw partition"):
        parse_run_folder(path)


@given(seals)
def test_a_seal_reads_back_as_itself(seal: Seal) -> None:
    document = seal.to_bytes()
    assert Seal.from_bytes(document) == seal
    assert Seal.from_bytes(document).to_bytes() == document


def test_the_document_of_a_seal_is_stable() -> None:
    assert SEAL.to_bytes() == (
        b'{"api_version":"v23","customer_id":"1000000001","extracted_at":"2024-06-02T03:04:05.000000Z",'
        b'"logical_date":"2024-06-01","payload":"payload-01HZ0000000000000000000000.jsonl","payload_bytes":36,'
        b'"payload_sha256":"0000000000000000000000000000000000000000000000000000000000000000",'
        b'"penstock_version":"0.1.0","query_hash":"abc","query_name":"campaign_daily","record_count":2,'
        b'"run_id":"01HZ0000000000000000000000","schema_version":"v1","source":"demo","time_zone":"Europe/Berlin"}'
    )
    assert SEAL.attempt == AttemptKey(KEY, RunId(ULID))


def test_a_field_of_a_later_version_is_ignored() -> None:
    facts = orjson.loads(SEAL.to_bytes()) | {"colour": "blue"}
    assert Seal.from_bytes(orjson.dumps(facts)) == SEAL


@pytest.mark.parametrize("document", [b"", b"{", b"\xff", b"not json"])
def test_a_document_that_is_no_json_is_refused(document: bytes) -> None:
    with pytest.raises(RawError, match="it is not JSON"):
        Seal.from_bytes(document)


def test_a_document_that_is_no_object_is_refused() -> None:
    with pytest.raises(RawError, match="not a JSON object but list"):
        Seal.from_bytes(b"[]")


def test_missing_fields_are_named_all_at_once() -> None:
    facts = orjson.loads(SEAL.to_bytes())
    del facts["record_count"], facts["time_zone"]
    with pytest.raises(RawError, match=r"it lacks record_count, time_zone$"):
        Seal.from_bytes(orjson.dumps(facts))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("record_count", -1),
        ("record_count", True),
        ("payload_bytes", "36"),
        ("schema_version", 1),
        ("payload", "../../secret"),
        ("payload", "payload-1.jsonl"),
        ("payload_sha256", "0" * 63),
        ("source", "Demo"),
        ("customer_id", "a/b"),
        ("query_name", ""),
        ("logical_date", "2024-06-31"),
        ("run_id", "7"),
        ("extracted_at", "yesterday"),
        ("extracted_at", "2024-06-02T03:04:05"),
        ("api_version", None),
    ],
)
def test_a_field_with_a_wrong_value_is_named(field: str, value: object) -> None:
    facts = orjson.loads(SEAL.to_bytes()) | {field: value}
    with pytest.raises(RawError, match=field.partition("_")[0]):
        Seal.from_bytes(orjson.dumps(facts))

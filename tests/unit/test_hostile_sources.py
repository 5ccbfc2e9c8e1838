"""Hostile payloads of each source, up to the verdict: refused by line or page, without affecting other days."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, SourceSettings
from penstock.contract.complaint import summary
from penstock.contract.contract import Contract
from penstock.contract.parse import parse_many
from penstock.lake import open_lake
from penstock.partition import new_run_id
from penstock.pipeline.extract import extract_locally
from penstock.pipeline.source_requests import Extraction
from penstock.raw.reader import RawReader
from penstock.source.protocol import RunContext
from penstock.source.registry import make_source
from support.web import Asked, Said, service

D1, D2, D3 = DAYS = [date(2024, 6, day) for day in (1, 2, 3)]
FIELDS = (Field(name="n", type="long"), Field(name="s", type="string"), Field(name="d", type="decimal(38,6)"))
GOOD = [b'{"n":1,"s":"a","d":"1.5"}', b'{"n":2}']
MEGABYTE = 1024 * 1024


def judged(folder: Path, kind: str, options: dict[str, Any], own: dict[str, Any] | None = None) -> dict[date, str]:
    """The result of each day: a number of rows, or the reason of the refusal, at extraction or by the contract."""
    settings = SourceSettings(name="shop", kind=kind, options=options)
    query = Query(name="q", source="shop", fields=FIELDS, options=own or {})
    extraction = Extraction(str(folder / "lake"), new_run_id(), settings, {"q": query}, {"q": "hash"})
    source = make_source(settings, RunContext(extraction.run_id))
    reader = RawReader(open_lake(extraction.lake))
    verdicts = {}
    for found in extract_locally(extraction, source, query, Customer(id="1"), DAYS):
        day = found.attempt.partition.logical_date
        if not found.ok:
            verdicts[day] = f"{found.error_class}: {found.error_message}"
            continue
        seal = reader.seal(found.attempt)
        assert seal is not None
        parsed = parse_many([reader.payload(seal)], Contract.of(query))
        complaints = parsed.complaints.get(0, ())
        verdicts[day] = f"refused: {summary(complaints)}" if complaints else str(parsed.table.num_rows)
    return verdicts


# The second of three lines (or records), and the expected message.
LINES: list[tuple[str, bytes, str]] = [
    ("cut", b'{"n":1,"s":"a', "refused: not valid JSON (Unterminated string starting at) (line 2)"),
    ("words", b"Internal Server Error", "refused: not valid JSON (Expecting value) (line 2)"),
    ("two in one", b'{"n":1}{"n":2}', "refused: not valid JSON (Extra data) (line 2)"),
    ("byte order mark", b'\xef\xbb\xbf{"n":1}', "refused: not valid JSON (Unexpected UTF-8 BOM"),
    ("nul", b'{"n":\x001}', "refused: not valid JSON (Expecting value) (line 2)"),
    ("nul in text", b'{"s":"a\x00b"}', "refused: not valid JSON (Invalid control character at) (line 2)"),
    ("nothing but nul", b"\x00\x00\x00", "refused: not valid JSON (Expecting value) (line 2)"),
    ("65 bits", b'{"n":18446744073709551616}', "refused: n is not a whole number of at most 64 bits (line 2)"),
    ("64 bits", b'{"n":9223372036854775808}', "refused: n is not a whole number of at most 64 bits (line 2)"),
    ("fraction", b'{"n":1.5}', "refused: n is not a whole number of at most 64 bits (line 2)"),
    ("exponent", b'{"n":1e3}', "refused: n is not a whole number of at most 64 bits (line 2)"),
    ("40 digits", b'{"d":1%s}' % (b"0" * 39), "refused: d is not a decimal(38,6) as number or string (line 2)"),
    ("too exact", b'{"d":0.0000001}', "refused: d is not a decimal(38,6) as number or string (line 2)"),
    ("not a number", b'{"n":NaN}', "refused: not valid JSON (NaN is not a JSON number) (line 2)"),
    ("field twice", b'{"n":1,"n":2}', "refused: not valid JSON (a field stands twice in one row) (line 2)"),
    ("unknown field", b'{"n":1,"x":2}', "refused: field 'x' is not in the contract (line 2)"),
    ("latin 1", b'{"s":"gr\xfcn"}', "refused: not valid JSON (not UTF-8) (line 2)"),
    ("half a character", b'{"s":"\\ud800"}', "refused: s is not a string (line 2)"),
    ("null", b"null", "refused: not a JSON object (line 2)"),
    ("list", b'[{"n":1}]', "refused: not a JSON object (line 2)"),
    ("deep", b'{"n":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "refused: not valid JSON (nested too deeply) (line 2)"),
    ("5000 digits", b'{"n":' + b"9" * 5000 + b"}", "refused: "),
]  # fmt: skip
BY_NAME = pytest.mark.parametrize(("line", "words"), [case[1:] for case in LINES], ids=[case[0] for case in LINES])


def deliver(folder: Path, lines: Sequence[bytes], ending: str = "jsonl", good: bytes | None = None) -> dict[str, Any]:
    for day in DAYS:
        content = b"\n".join(lines if day == D2 else GOOD) + b"\n"
        (folder / f"{day}.{ending}").write_bytes(content if good is None or day == D2 else good)
    return {"folder": str(folder), "path": f"{{date}}.{ending}"}


@BY_NAME
def test_a_hostile_line_of_a_file_is_refused_by_its_number(tmp_path: Path, line: bytes, words: str) -> None:
    verdicts = judged(tmp_path, "files", deliver(tmp_path, [GOOD[0], line, GOOD[1]]))
    assert verdicts[D2].startswith(words)
    assert (verdicts[D1], verdicts[D3]) == ("2", "2")


def test_a_file_with_a_byte_order_mark_is_refused_at_its_first_line(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, "files", deliver(tmp_path, [b"\xef\xbb\xbf" + GOOD[0], GOOD[1]]))
    assert verdicts == {D1: "2", D2: verdicts[D2], D3: "2"}
    assert verdicts[D2].endswith("(line 1)")


def test_a_file_in_utf_16_is_refused(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, "files", deliver(tmp_path, [line.decode().encode("utf-16") for line in GOOD]))
    assert verdicts[D2].startswith("refused: not valid JSON (not UTF-8) (")
    assert (verdicts[D1], verdicts[D3]) == ("2", "2")


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_line_of_100_mb_is_refused_by_its_number(tmp_path: Path, ending: str) -> None:
    options = deliver(tmp_path, [], ending, b"n\n1\n" if ending == "csv" else b'{"n":1}\n')
    with (tmp_path / f"{D2}.{ending}").open("wb") as file:
        file.write(b"n\n" if ending == "csv" else b'{"n":1}\n')
        for _ in range(100):
            file.write(b"1" * MEGABYTE)
    verdicts = judged(tmp_path, "files", options)
    assert verdicts == {
        D1: "1",
        D2: f"data: {D2}.{ending}, line 2: longer than 64 MB, the most that a line may have",
        D3: "1",
    }


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (b"n,s\n1,a\nx,b\n", "refused: n is not a whole number of at most 64 bits (line 2)"),
        (b"n,s\n1,a\n18446744073709551616,b\n", "refused: n is not a whole number of at most 64 bits (line 2)"),
        (b"n,d\n1,1.5\n2,NaN\n", "refused: d is not a decimal(38,6) as number or string (line 2)"),
        (b"n,x\n1,a\n", "refused: field 'x' is not in the contract (line 1)"),
        (b"n,s\n1,a\n2,gr\xfcn\n", "data: 2024-06-02.csv, line 3: not utf-8-sig text"),
        (b'n,s\n1,a\n2,"never closed\n', "data: 2024-06-02.csv, line 3: not valid CSV: unexpected end of data"),
        (b"n,s\n1,a\n2\n", "data: 2024-06-02.csv, line 3: 1 cells, where the header names 2 columns"),
        (b"n,s\n1,\x00\n\x00,b\n", "refused: n is not a whole number of at most 64 bits (line 2)"),
        (b"n,s\n" + b"9" * 5000 + b",a\n", "refused: "),
    ],
    ids=["words", "65 bits", "no number", "unknown", "latin 1", "open quote", "short", "nul", "5000 digits"],
)
def test_hostile_cells_are_refused_by_line(tmp_path: Path, rows: bytes, words: str) -> None:
    options = deliver(tmp_path, [], "csv", b"n,s,d\n1,a,1.5\n2,,\n")
    (tmp_path / f"{D2}.csv").write_bytes(rows)
    verdicts = judged(tmp_path, "files", options)
    assert verdicts[D2].startswith(words)
    assert (verdicts[D1], verdicts[D3]) == ("2", "2")


def answering(page: bytes) -> Callable[[Asked], Said]:
    good = b'{"items":[' + b",".join(GOOD) + b"]}"
    return lambda asked: Said(page if asked.path.endswith(str(D2)) else good)


@BY_NAME
def test_a_hostile_record_is_refused_by_page_or_by_line(tmp_path: Path, line: bytes, words: str) -> None:
    page = b'{"items":[' + b",".join([GOOD[0], line, GOOD[1]]) + b"]}"
    with service(answering(page)) as here:
        verdicts = judged(tmp_path, "http", {"url": f"{here.url}/{{date}}", "records": "items"})
    assert verdicts[D2].startswith(("data: page 1 ", words))
    assert (verdicts[D1], verdicts[D3]) == ("2", "2")


def test_a_page_of_100_mb_is_refused(tmp_path: Path) -> None:
    with service(answering(b'{"items":["' + b"x" * (100 * MEGABYTE) + b'"]}')) as here:
        verdicts = judged(tmp_path, "http", {"url": f"{here.url}/{{date}}", "records": "items"})
    assert verdicts[D2].startswith("data: page 1 is larger than 64 MB")
    assert (verdicts[D1], verdicts[D3]) == ("2", "2")


def test_a_record_of_another_day_fails_the_days_that_it_came_with(tmp_path: Path) -> None:
    url = "?from={first_date}&to={last_date}"
    page = b'{"items":[{"n":1,"day":"2024-06-01"},{"n":2,"day":"2024-07-01"}]}'
    with service(lambda _: Said(page)) as here:
        verdicts = judged(tmp_path, "http", {"url": here.url + url, "records": "items", "date_field": "day"})
    assert {text.partition(", outside")[0] for text in verdicts.values()} == {
        "data: page 1, record 2: day is 2024-07-01"
    }


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("9223372036854775807 + 1", "refused: n is not a whole number of at most 64 bits (line 2)"),
        ("'many'", "refused: n is not a whole number of at most 64 bits (line 2)"),
        ("9e999", "refused: n is not a whole number of at most 64 bits (line 2)"),
        ("x'00ff'", "refused: n is not a whole number of at most 64 bits (line 2)"),
        ("CAST(x'ff' AS TEXT)", "data: the sqlite database shop.db: Could not decode to UTF-8"),
    ],
)
def test_hostile_values_of_a_database_are_refused(tmp_path: Path, value: str, words: str) -> None:
    database = sqlite3.connect(tmp_path / "shop.db")
    with database:
        database.execute("CREATE TABLE sales (day, n)")
        database.execute(f"INSERT INTO sales VALUES ('{D1}', 1), ('{D2}', 1), ('{D2}', {value}), ('{D3}', 1)")
    database.close()
    own = {"sql": "SELECT day AS logical_date, n FROM sales WHERE day BETWEEN :first_date AND :last_date"}
    verdicts = judged(tmp_path, "sql", {"url": f"sqlite:///{tmp_path}/shop.db"}, own)
    assert verdicts[D2].startswith(words)
    if words.startswith("refused"):
        assert (verdicts[D1], verdicts[D3]) == ("1", "1")
    own["sql"] = own["sql"].replace("BETWEEN :first_date AND :last_date", "<> '2024-06-02'")
    assert judged(tmp_path, "sql", {"url": f"sqlite:///{tmp_path}/shop.db"}, own) == {D1: "1", D2: "0", D3: "1"}


def test_a_row_of_another_day_fails_the_days_that_it_came_with(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()
    own = {"sql": "SELECT '2024-06-01' AS logical_date, 1 AS n UNION ALL SELECT '2024-07-01', 2"}
    verdicts = judged(tmp_path, "sql", {"url": f"sqlite:///{tmp_path}/shop.db"}, own)
    assert {text.partition(", outside")[0] for text in verdicts.values()} == {
        "data: row 2 of the answer: logical_date is 2024-07-01"
    }

"""The files source: paths, formats, and missing files."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.loading import load_settings
from penstock.errors import AuthFailed, ConfigError, DataError, SourceUnavailable
from penstock.partition import new_run_id
from penstock.source.files import FilesSource
from penstock.source.inflate import Inflated
from penstock.source.protocol import RunContext
from penstock.source.registry import hooks_of
from support.fetching import by_day
from support.servers import free_port

D1, D2, D3 = DAYS = [date(2024, 6, day) for day in (1, 2, 3)]
MEGABYTE = 1024 * 1024
KINDS = ("long", "double", "boolean", "string", "date", "timestamp", "decimal(20,2)")
FIELDS = tuple(Field(name=kind.partition("(")[0], type=kind) for kind in KINDS)


def fetch(options: dict[str, Any], **own: Any) -> dict[date, Any]:
    """The lines of each day, or its error."""
    source = FilesSource(options, RunContext(new_run_id()))
    return by_day(source, Query(name="q", source="s", fields=FIELDS, options=own), DAYS)


def deliver(folder: Path, **files: bytes) -> None:
    """`d1_a=...` is the file 2024-06-01-a."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        day, _, rest = name.partition("_")
        (folder / f"2024-06-0{day[1]}-{rest}").write_bytes(content)


def test_json_lines_pass_unchanged(tmp_path: Path) -> None:
    odd = b'{ "long" : 1e400, "x":"\\u00e9\xc3\xa9" }\r'
    deliver(tmp_path, d1_x=odd + b"\n{broken\n" + b"\n\r\n", d2_x=b"", d3_x=b"\xff\x00\xfe\n{}")
    found = fetch({"folder": str(tmp_path)}, path="{date}-x", format="jsonl")
    assert found == {D1: [odd, b"{broken"], D2: [], D3: [b"\xff\x00\xfe", b"{}"]}


def test_a_blank_line_in_the_middle_is_named(tmp_path: Path) -> None:
    deliver(tmp_path, d1_x=b"{}\n \n{}\n", d2_x=b"{}\n", d3_x=b"")
    found = fetch({"folder": str(tmp_path), "path": "{date}-x", "format": "jsonl"})
    assert str(found[D1]) == "2024-06-01-x, line 2: expected one JSON document on each line, found none"
    assert (found[D2], found[D3]) == ([b"{}"], [])


def test_cells_become_what_their_field_says(tmp_path: Path) -> None:
    rows = (
        b"\xef\xbb\xbflong,double,boolean,string,date,timestamp,decimal,more\r\n"
        b'12,1.5,TRUE,"a ""b"",\nc",2024-06-01,2024-06-01T00:00:00Z,1.10,x\r\n'
        b" +007 ,.5,false,  , 2024-06-01 ,x, 2.00 ,y\r\n"
        b"123456789012345678901234567890,-01e5,yes,1,1,1,NaN,\r\n"
        b",,,,,,,\r\n"
        b"-000,007.50,true,,,,,\r\n"
        b"twelve,NaN,1,,,,,\r\n"
    )
    deliver(tmp_path, d1_csv=rows)
    assert fetch({"folder": str(tmp_path), "path": "{date}-*", "format": "csv", "missing": "empty"})[D1] == [
        b'{"long":12,"double":1.5,"boolean":true,"string":"a \\"b\\",\\nc","date":"2024-06-01",'
        b'"timestamp":"2024-06-01T00:00:00Z","decimal":"1.10","more":"x"}',
        b'{"long":7,"double":0.5,"boolean":false,"string":"  ","date":"2024-06-01","timestamp":"x","decimal":"2.00",'
        b'"more":"y"}',
        b'{"long":123456789012345678901234567890,"double":-1.0e5,"boolean":"yes","string":"1","date":"1",'
        b'"timestamp":"1","decimal":"NaN","more":null}',
        b'{"long":null,"double":null,"boolean":null,"string":null,"date":null,"timestamp":null,"decimal":null,'
        b'"more":null}',
        b'{"long":-0,"double":7.50,"boolean":true,"string":null,"date":null,"timestamp":null,"decimal":null,"more":null}',
        b'{"long":"twelve","double":"NaN","boolean":"1","string":null,"date":null,"timestamp":null,"decimal":null,'
        b'"more":null}',
    ]


def test_a_long_cell_that_is_no_number_is_not_tried_in_every_way(tmp_path: Path) -> None:
    """Would run for hours if digits could be shared out among the parts of a pattern."""
    deliver(tmp_path, d1_csv=b"long,double\n" + b"0" * MEGABYTE + b"x," + b"0" * MEGABYTE + b"x\n")
    [line] = fetch({"folder": str(tmp_path), "path": "{date}-csv", "format": "csv", "missing": "empty"})[D1]
    assert len(line) > 2 * MEGABYTE


def test_csv_has_dialects(tmp_path: Path) -> None:
    deliver(tmp_path, d1_csv="string;long\nGrün;1\n".encode("cp1252"), d2_csv="string;long\n".encode("cp1252"))
    found = fetch({"folder": str(tmp_path), "path": "{date}-csv", "format": "csv"}, delimiter=";", encoding="cp1252")
    assert found[D1] == ['{"string":"Grün","long":1}'.encode()]
    assert found[D2] == []
    deliver(tmp_path, d1_csv="string;long\nGrün;1\n".encode("utf-16"))
    found = fetch({"folder": str(tmp_path), "path": "{date}-csv", "format": "csv"}, delimiter=";", encoding="utf-16")
    assert found[D1] == ['{"string":"Grün","long":1}'.encode()]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: expected a header that names every column, found ''"),
        (b"a,,b\n", "line 1: expected a header that names every column, found 'a,,b'"),
        (b"a,b,a\n", "line 1: the column 'a' occurs twice in the header"),
        (b"a,b\n1,2\n1\n", "line 3: 1 cells, where the header names 2 columns"),
        (b"a,b\n1,2,3\n", "line 2: 3 cells, where the header names 2 columns"),
        (b'a,b\n1,2\n1,"2\n', "line 3: not valid CSV: unexpected end of data"),
        (b'a,b\n1,"2"x\n', "line 2: not valid CSV: ',' expected after '\"'"),
        (b"a,b\n1,2\n\xff,2\n", "line 3: not utf-8-sig text"),
        (b"\xff,b\n", "line 1: not utf-8-sig text"),
    ],
)
def test_csv_that_cannot_be_read_is_refused_by_line(tmp_path: Path, content: bytes, words: str) -> None:
    deliver(tmp_path, d1_csv=content, d2_csv=b"long\n1\n")
    found = fetch({"folder": str(tmp_path), "path": "{date}-csv", "format": "csv"})
    assert str(found[D1]) == f"2024-06-01-csv, {words}"
    assert found[D1].error_class == "data"
    assert found[D2] == [b'{"long":1}']


def test_parquet_keeps_every_digit(tmp_path: Path) -> None:
    table = pa.table(
        {
            "decimal": pa.array([Decimal("12345678901234567.89"), None], pa.decimal128(38, 2)),
            "double": [float("nan"), 0.1],
            "timestamp": pa.array([datetime(2024, 6, 1, 12, tzinfo=UTC), None], pa.timestamp("ns", "UTC")),
            "date": [D1, None],
            "long": pa.array([2**64 - 1, 0], pa.uint64()),
            "string": [b"\xff", None],
        }
    )
    target = tmp_path / "2024-06-01.parquet"
    pa.parquet.write_table(table, target)
    assert fetch({"folder": str(tmp_path), "path": "{date}.parquet", "missing": "empty"})[D1] == [
        b'{"decimal":12345678901234567.89,"double":"nan","timestamp":"2024-06-01T12:00:00+00:00","date":"2024-06-01",'
        b'"long":18446744073709551615,"string":"/w=="}',
        b'{"decimal":null,"double":0.1,"timestamp":null,"date":null,"long":0,"string":null}',
    ]


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"PAR1" + b"\x00" * 100 + b"PAR1"], ids=range(3))
def test_parquet_that_cannot_be_read_fails_its_day(tmp_path: Path, content: bytes) -> None:
    deliver(tmp_path, d1_x=content)
    pa.parquet.write_table(pa.table({"long": [1]}), tmp_path / "2024-06-02-x")
    found = fetch({"folder": str(tmp_path), "path": "{date}-x", "format": "parquet"})
    assert str(found[D1]).startswith("2024-06-01-x: not a Parquet file that can be read: ")
    assert found[D2] == [b'{"long":1}']


@pytest.mark.parametrize(
    "content", [b"not gzip at all\n", gzip.compress(b'{"long":1}\n' * 1000)[:-9]], ids=["plain", "cut"]
)
def test_compressed_files_that_broke_off_fail_their_day(tmp_path: Path, content: bytes) -> None:
    deliver(tmp_path, d1_x=content, d2_x=gzip.compress(b'{"long":1}\n'))
    for day in ("1", "2"):
        (tmp_path / f"2024-06-0{day}-x").rename(tmp_path / f"2024-06-0{day}.jsonl.gz")
    found = fetch({"folder": str(tmp_path), "path": "{date}.jsonl.gz"})
    assert str(found[D1]).startswith("2024-06-01.jsonl.gz: not a whole gzip file: ")
    assert found[D2] == [b'{"long":1}']


def test_a_missing_file_is_waited_for_unless_it_means_nothing_happened(tmp_path: Path) -> None:
    deliver(tmp_path / "in", d2_x=b"{}\n")
    for path in ("{date}-x", "{date}-*"):
        options = {"folder": str(tmp_path), "path": f"in/{path}", "format": "jsonl"}
        found = fetch(options)
        assert isinstance(found[D1], SourceUnavailable)
        assert str(found[D1]) == f"there is no file {path.replace('{date}', '2024-06-01')} in {tmp_path}/in yet"
        assert found[D2] == [b"{}"]
        assert fetch({**options, "missing": "empty"}) == {D1: [], D2: [b"{}"], D3: []}
    (tmp_path / "in" / "2024-06-01-x").mkdir()
    assert isinstance(fetch({"folder": str(tmp_path), "path": "in/{date}-x", "format": "jsonl"})[D1], SourceUnavailable)


def test_a_star_stands_for_files_of_the_folder_in_the_order_of_names(tmp_path: Path) -> None:
    deliver(tmp_path / "in", d1_b=b"2\n", d1_a=b"1", d1_10=b"0\n", d2_=b"3\n")
    deliver(tmp_path / "in" / "deeper", d1_c=b"9\n")
    found = fetch({"folder": str(tmp_path), "path": "in/{date}-*", "format": "jsonl", "missing": "empty"})
    assert found == {D1: [b"0", b"1", b"2"], D2: [b"3"], D3: []}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "{customer_id}.csv"}, "path: must have {date}, or {yyyy}, {mm} and {dd}"),
        ({"path": "*/{date}.csv"}, "path: * is allowed in the last part only"),
        ({"path": "{day}/{date}.csv", "folder": "/in"}, "{day} cannot be filled in (known here: {customer_id}, "),
        ({"path": "{date}.xls", "folder": "/in"}, "queries.q.options: format: is missing, and the path"),
        ({"path": "{date}.parquet.gz", "folder": "/in"}, "Parquet is compressed inside"),
        ({"folder": "/in"}, "queries.q.options: path: is missing"),
        ({"path": "{date}.csv"}, "must be absolute, or the source must define its folder"),
        ({"path": "{date}.csv", "format": "xml"}, "format: input should be 'jsonl', 'csv' or 'parquet'"),
        ({"path": "{date}.csv", "encoding": "utf-9"}, "encoding: 'utf-9' is not a known encoding"),
        ({"path": "{date}.csv", "encoding": "base64"}, "encoding: 'base64' is not a known encoding"),
        ({"path": "{date}.csv", "delimiter": "||"}, "delimiter: "),
        ({"path": "{date}.csv", "seperator": ";"}, "seperator: extra inputs are not permitted (known: path, format,"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        fetch(options)
    assert words in str(refused.value)


def test_a_query_may_not_move_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"queries\.q\.options: folder: extra inputs are not permitted"):
        fetch({"folder": str(tmp_path), "path": "{date}.csv"}, folder="/etc")


def test_paths_start_at_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(
        "tenant: a\nworkspace: b\nstate: sqlite:///state.db\nlake: ./lake\n"
        "sources:\n  plain: {kind: files}\n  inbox: {kind: files, folder: ../in}\n  far: {kind: files, folder: s3://b/p}\n"
    )
    sources = load_settings(tmp_path, {}, hooks_of).sources
    assert {name: source.options["folder"] for name, source in sources.items()} == {
        "plain": str(tmp_path),
        "inbox": str(tmp_path.parent / "in"),
        "far": "s3://b/p",
    }


def test_an_unreadable_file_fails_its_day(tmp_path: Path) -> None:
    long = "x" * 300  # a name that no file can have: refused even to root, unlike a file without permissions
    found = fetch({"folder": str(tmp_path), "path": f"{{date}}-{long}", "format": "jsonl"})
    assert [type(found[day]) for day in DAYS] == [ConfigError] * 3
    assert str(found[D1]).startswith("2024-06-01-xxx")
    assert "cannot be read: cannot open" in str(found[D1])


def test_a_bucket_that_does_not_exist_refuses_every_slice(s3_url: str) -> None:
    with pytest.raises(AuthFailed, match="there is no such bucket"):
        fetch({"folder": "s3://no-such-bucket-anywhere", "path": "{date}-*.csv"})


def test_a_storage_that_is_away_is_unavailable(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SourceUnavailable, match=r"2024-06-01\.csv cannot be read"):
        fetch({"folder": s3_url, "path": "{date}.csv"})


def test_a_link_that_leads_out_of_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    outside, inbox = tmp_path / "outside", tmp_path / "inbox"
    deliver(outside, d1_x=b'{"long":1}\n', d2_x=b'{"long":2}\n')
    deliver(inbox, d3_x=b'{"long":3}\n', d1_y=b'{"long":4}\n')
    (inbox / "2024-06-01-x").symlink_to(outside / "2024-06-01-x")
    (inbox / "2024-06-02-x").symlink_to(inbox / "2024-06-01-y")
    (inbox / "north").symlink_to(outside)
    options = {"folder": str(inbox), "format": "jsonl"}
    found = fetch(options, path="{date}-x")
    assert isinstance(found[D1], ConfigError)
    assert str(found[D1]) == (
        f"2024-06-01-x is a link to {outside}/2024-06-01-x, outside of {inbox}: deliver the file itself, or allow links"
        " with follow_symlinks: true"
    )
    assert (found[D2], found[D3]) == ([b'{"long":4}'], [b'{"long":3}'])  # a link inside the folder is a file
    assert fetch(options, path="{date}-x", follow_symlinks=True)[D1] == [b'{"long":1}']

    by_folder = fetch(options, path="north/{date}-*")
    assert "2024-06-01-x is a link to" in str(by_folder[D1])
    assert fetch({**options, "follow_symlinks": True}, path="north/{date}-*")[D2] == [b'{"long":2}']


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    deliver(tmp_path / "real", d1_x=b'{"long":1}\n')
    (tmp_path / "inbox").symlink_to(tmp_path / "real")
    assert fetch({"folder": str(tmp_path / "inbox"), "format": "jsonl"}, path="{date}-x")[D1] == [b'{"long":1}']


def test_a_link_to_a_large_folder_is_not_searched(tmp_path: Path) -> None:
    deliver(tmp_path, d1_x=b'{"long":1}\n')
    (tmp_path / "loop").symlink_to(tmp_path)
    assert fetch({"folder": str(tmp_path), "format": "jsonl"}, path="{date}-*")[D1] == [b'{"long":1}']


def test_gzip_that_inflates_without_end_is_refused_and_what_is_large_is_read(tmp_path: Path) -> None:
    line = b'{"long":1}' + b" " * (MEGABYTE - 11) + b"\n"
    bomb = gzip.compress(line * 100)  # 1000 : 1
    assert len(bomb) < 200_000
    (tmp_path / "2024-06-01.jsonl.gz").write_bytes(bomb)
    (tmp_path / "2024-06-02.jsonl.gz").write_bytes(gzip.compress(b'{"long":2}\n' * 1000))
    (tmp_path / "2024-06-03.jsonl.gz").write_bytes(gzip.compress(line * 20))
    options = {"folder": str(tmp_path), "path": "{date}.jsonl.gz"}
    found = fetch(options)
    assert isinstance(found[D1], DataError)
    assert str(found[D1]) == (
        "2024-06-01.jsonl.gz: inflates to more than 200 times its size, the most that max_inflate_ratio allows"
    )
    assert (len(found[D2]), len(found[D3])) == (1000, 20)  # the ratio counts beyond 64 MB only
    assert len(fetch(options, max_inflate_ratio=2000)[D1]) == 100
    assert str(fetch(options, max_inflated_bytes=5000)[D2]) == (
        "2024-06-02.jsonl.gz: inflates to more than 5,000 bytes, the most that max_inflated_bytes allows"
    )


def test_a_gzip_bomb_is_stopped_before_it_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\0" * (128 * MEGABYTE), 1))
    sizes: list[int] = []
    with (tmp_path / "x.gz").open("rb") as file:
        inside = Inflated(file, "x.gz", 4 * 1024**3, 200)
        with pytest.raises(DataError, match="max_inflate_ratio"):
            sizes.extend(len(data) for data in iter(lambda: inside.read(MEGABYTE), b""))
    assert max(sizes) <= MEGABYTE
    assert sum(sizes) <= 64 * MEGABYTE

"""Every kind of source passes the suite that third parties use for theirs."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest
import sqlalchemy as sa

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer
from penstock.lake import open_lake
from penstock.source.demo import DemoSource
from penstock.source.files import FilesSource
from penstock.source.http import HttpSource
from penstock.source.sql import SqlSource
from penstock.testing import SourceSuite
from support.servers import free_port
from support.web import Asked, Said, service

DAYS = [date(2024, 6, 1) + timedelta(days=number) for number in range(4)]
ME, OTHER = Customer(id="me"), "other"
FIELDS = (
    Field(name="order_id", type="long", required=True),
    Field(name="amount", type="decimal(30,10)"),
    Field(name="weight", type="double"),
    Field(name="paid", type="boolean"),
    Field(name="note", type="string"),
    Field(name="due", type="date"),
    Field(name="sold_at", type="timestamp"),
)


def query(**options: Any) -> Query:
    return Query(name="orders", source="shop", fields=FIELDS, options=options)


def order(day: date, number: int) -> dict[str, Any]:
    """A row that JSON represents as it is; amounts have more digits than a float."""
    return {
        "order_id": 2**62 + number,
        "amount": f"{number}1234567890123456.0123456789",
        "weight": number / 3,
        "paid": number % 2 == 0,
        "note": None if number == 1 else f'grün, "quoted"\nand {number}',
        "due": day.isoformat(),
        "sold_at": f"{day}T12:00:00.000001Z",
    }


def orders(day: date) -> list[dict[str, Any]]:
    """Two, three, ... rows; the second day has none."""
    index = (day - DAYS[0]).days
    return [] if index == 1 else [order(day, number) for number in range(2 + index)]


class TestDemo(SourceSuite):
    source = DemoSource
    options = {"rows": 3}  # noqa: RUF012 - as users of the suite write it
    query = query()
    dates = DAYS
    asks_a_service = False


CREATE = (
    "CREATE TABLE sales (customer TEXT, day DATE, order_id BIGINT, amount NUMERIC, weight DOUBLE PRECISION,"
    " paid BOOLEAN, note TEXT, due DATE, sold_at TIMESTAMP)"
)
SELECT = (
    "SELECT day AS logical_date, order_id, amount, weight, paid, note, due, sold_at FROM sales"
    " WHERE customer = :customer_id AND day {} ORDER BY order_id"
)


def sales() -> Iterator[dict[str, Any]]:
    for customer in (ME.id, OTHER):
        for day in DAYS:
            for row in orders(day):
                yield {"customer": customer, "day": day.isoformat(), **row}


def fill(engine: sa.Engine) -> None:
    rows = list(sales())
    names = list(rows[0])
    with engine.begin() as connection:
        connection.exec_driver_sql(CREATE)
        values = ", ".join(f":{name}" for name in names)
        connection.execute(sa.text(f"INSERT INTO sales ({', '.join(names)}) VALUES ({values})"), rows)
    engine.dispose()


class TestSqlOnSqlite(SourceSuite):
    source = SqlSource
    customer = ME
    dates = DAYS
    # SQLite has no decimals and no booleans: the SELECT returns JSON
    query = query(
        sql="SELECT day AS logical_date, order_id, CAST(amount AS TEXT) AS amount, weight, note, due, sold_at"
        " FROM sales WHERE customer = :customer_id AND day IN (:dates)"
    )

    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/shop.db"
        fill(sa.create_engine(url))
        self.options = {"url": url}
        self.failing_options = [{"url": f"sqlite:///{tmp_path}/none.db"}, {"url": f"sqlite:///{tmp_path}"}]


@pytest.fixture(scope="session")
def sales_url(postgres_url: str) -> str:
    """A database of its own with the table."""
    server = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE shop")
    server.dispose()
    url = sa.make_url(postgres_url).set(database="shop").render_as_string(hide_password=False)
    fill(sa.create_engine(url))
    return url


class TestSqlOnPostgresql(SourceSuite):
    source = SqlSource
    customer = ME
    dates = DAYS
    query = query(sql=SELECT.format("BETWEEN :first_date AND :last_date"))

    @pytest.fixture(autouse=True)
    def _database(self, sales_url: str) -> None:
        self.options = {"url": sales_url}
        nobody = sa.make_url(sales_url).set(username="nobody").render_as_string(hide_password=False)
        self.failing_options = [
            {"url": f"postgresql+psycopg://postgres@127.0.0.1:{free_port()}/postgres"},
            {"url": nobody},
        ]


Encoder = Callable[[Sequence[dict[str, Any]]], bytes]


def as_json_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    import csv

    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in FIELDS], lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8-sig")


def as_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    def typed(row: dict[str, Any]) -> dict[str, Any]:
        sold_at = date.fromisoformat(row["due"])
        return row | {"amount": Decimal(row["amount"]), "due": sold_at, "sold_at": pa.scalar(row["sold_at"]).cast(
            pa.timestamp("us", "UTC")).as_py()}  # fmt: skip

    kinds = [pa.int64(), pa.decimal128(38, 10), pa.float64(), pa.bool_(), pa.string(), pa.date32(),
             pa.timestamp("us", "UTC")]  # fmt: skip
    schema = pa.schema(list(zip((field.name for field in FIELDS), kinds, strict=True)))
    target = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_pylist([typed(row) for row in rows], schema=schema), target)
    return target.getvalue()


class _Files(SourceSuite):
    """Files for two customers. The last day has two files, where the path allows it."""

    source = FilesSource
    customer = ME
    dates = DAYS
    encode: Encoder = staticmethod(as_json_lines)
    path = "{customer_id}/{yyyy}/{mm}-{dd}.jsonl"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.deliver(str(tmp_path))

    def deliver(self, folder: str) -> None:
        lake = open_lake(folder)
        for customer in (ME.id, OTHER):
            for day in DAYS:
                rows = orders(day)
                pieces = [rows] if "*" not in self.path else [rows[:1], rows[1:]]
                for number, piece in enumerate(pieces):
                    self._write(lake, customer, day, number, piece)
        self.options = {"folder": folder, "path": self.path}
        self.query = query()
        self.failing_options = [{"folder": folder, "path": "none/{date}.csv"}]

    def _write(self, lake: Any, customer: str, day: date, number: int, rows: Sequence[dict[str, Any]]) -> None:
        path = self.path.replace("*", str(number))
        for name, value in (("customer_id", customer), ("date", str(day)), ("yyyy", f"{day:%Y}"), ("mm", f"{day:%m}"),
                            ("dd", f"{day:%d}")):  # fmt: skip
            path = path.replace(f"{{{name}}}", value)
        content = type(self).encode(rows)
        with lake.writer(path) as writer:
            writer.write(gzip.compress(content) if path.endswith(".gz") else content)
            writer.commit()


class TestJsonLines(_Files):
    pass


class TestCompressedJsonLinesInPieces(_Files):
    path = "{customer_id}-{date}-*.ndjson.gz"


class TestCsv(_Files):
    encode: Encoder = staticmethod(as_csv)
    path = "{date}/{customer_id}.csv"


class TestParquet(_Files):
    encode: Encoder = staticmethod(as_parquet)
    path = "{customer_id}/{date}.parquet"


class TestFilesOnS3(_Files):
    encode: Encoder = staticmethod(as_csv)
    path = "{customer_id}/{date}-part*.csv.gz"

    @pytest.fixture(autouse=True)
    def _folder(self, s3_url: str) -> None:
        self.deliver(f"{s3_url}/deliveries")


class TestParquetOnS3(_Files):
    encode: Encoder = staticmethod(as_parquet)
    path = "{customer_id}/{date}.parquet"

    @pytest.fixture(autouse=True)
    def _folder(self, s3_url: str) -> None:
        self.deliver(f"{s3_url}/columns")


def answer_by_day(asked: Asked) -> Said:
    """/orders/<customer>?day=D&page=N, two records on a page."""
    _, _, customer = asked.path.rpartition("/")
    day, page = date.fromisoformat(asked.params["day"]), int(asked.params["page"])
    rows = orders(day)[2 * page - 2 : 2 * page] if customer == ME.id else [order(day, 99)]
    return Said(orjson.dumps({"data": {"items": rows}}, option=orjson.OPT_INDENT_2))


def answer_by_span(asked: Asked) -> Said:
    """/orders?customer=C&from=D&to=D&cursor=N, three records on a page, in no order of days."""
    if asked.headers.get("authorization") != "Bearer sesame":
        return Said(b"who are you?", 401)
    first, last = date.fromisoformat(asked.params["from"]), date.fromisoformat(asked.params["to"])
    days = [day for day in reversed(DAYS) if first <= day <= last]
    rows = [{"day": str(day), **row} for day in days for row in orders(day)]
    at = int(asked.params.get("cursor", 0))
    more = at + 3 if at + 3 < len(rows) else None
    return Said(orjson.dumps({"next": {"at": more}, "items": rows[at : at + 3]}))


class TestHttpByDay(SourceSuite):
    source = HttpSource
    customer = ME
    dates = DAYS
    query = query(url="orders/{customer_id}", params={"day": "{date}"}, records="data.items")

    @pytest.fixture(autouse=True)
    def _service(self) -> Iterator[None]:
        with service(answer_by_day) as here:
            self.options = {"url": f"{here.url}/v1/", "paging": {"kind": "page", "param": "page", "size": 2}}
            self.failing_options = [{**self.options, "url": f"http://127.0.0.1:{free_port()}"}]
            yield


class TestHttpBySpan(SourceSuite):
    source = HttpSource
    customer = ME
    dates = DAYS
    query = query(params={"from": "{first_date}", "to": "{last_date}"}, records="items", date_field="day")

    @pytest.fixture(autouse=True)
    def _service(self) -> Iterator[None]:
        with service(answer_by_span) as here:
            self.options = {
                "url": f"{here.url}/orders",
                "params": {"customer": "{customer_id}"},
                "headers": {"Authorization": "Bearer sesame"},
                "paging": {"kind": "cursor", "param": "cursor", "next": "next.at"},
            }
            self.failing_options = [{**self.options, "headers": {"Authorization": "Bearer guess"}}]
            yield

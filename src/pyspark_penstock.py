"""`spark.read.format("penstock")`: vouched rows as a Spark data source. Spark finds this module by its name.

    spark.read.format("penstock").option("workspace", path).option("table", "demo.campaign_daily").load()

Further options: `since`, `until`, `customers`, `as_of`, `schema_version`, and `columns` (Spark does not prune them for
Python sources). Filters on customer_id and logical_date are pushed down on Spark 4.1 and newer where
`spark.sql.python.filterPushdown.enabled` is true; elsewhere Spark filters the rows that it has read.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # Spark 4.0 has no filters of sources

_KNOWN = ("workspace", "table", "columns", "since", "until", "customers", "as_of", "schema_version", "path")


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        found: StructType = from_arrow_schema(_vouched(self.options, _Slice()).schema)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        options = dict(self.options)
        return FilteringReader(options) if _filters_are_pushed_down() else PenstockReader(options)


def _filters_are_pushed_down() -> bool:
    """Whether this process is the worker that Spark starts to push filters down. Outside of it, Spark refuses a reader
    that accepts filters if the session does not push them down."""
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules


class _Slice:
    """The pushed-down filters, as bounds of days and customers; unbounded at first."""

    def __init__(self) -> None:
        self.since: date | None = None
        self.until: date | None = None
        self.customers: set[str] | None = None

    def narrow(self, wanted: Filter) -> None:
        """Apply a filter. Spark applies all filters again, so the bounds may be wider than the filters."""
        column = getattr(wanted, "attribute", None)
        value = getattr(wanted, "value", None)
        match type(wanted).__name__, column:
            case "EqualTo", ("customer_id",):
                self._customers([value])
            case "In", ("customer_id",):
                self._customers(value)  # type: ignore[arg-type]
            case "EqualTo", ("logical_date",):
                self._since(value)
                self._until(value)
            case "GreaterThan" | "GreaterThanOrEqual", ("logical_date",):
                self._since(value)
            case "LessThan" | "LessThanOrEqual", ("logical_date",):
                self._until(value)

    def _customers(self, named: Iterable[Any]) -> None:
        mine = {str(customer) for customer in named}
        self.customers = mine if self.customers is None else self.customers & mine

    def _since(self, day: Any) -> None:
        self.since = max(self.since or day, day)

    def _until(self, day: Any) -> None:
        self.until = min(self.until or day, day)


class _ScanPartition(InputPartition):
    def __init__(self, share: bytes) -> None:
        super().__init__(None)
        self.share = share


class PenstockReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._slice = _Slice()

    def partitions(self) -> Sequence[InputPartition]:
        vouched = _vouched(self._options, self._slice)
        if self._slice.customers is not None and not self._slice.customers:
            return []
        return [_ScanPartition(pickle.dumps((task, vouched.schema))) for task in vouched.scan_tasks()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, _ScanPartition):  # Spark calls this once even for a table without partitions
            return
        share, columns = pickle.loads(partition.share)  # noqa: S301 - written by partitions() above
        yield from share.fitted(columns)


class FilteringReader(PenstockReader):
    """Reads only the files of the wanted customers and days. Spark applies the filters again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for wanted in filters:
            self._slice.narrow(wanted)
        return filters


def _vouched(options: Any, narrowed: _Slice) -> Any:
    from penstock.app.reader import open_reader
    from penstock.errors import UsageError
    from penstock.partition import day

    if unknown := sorted(set(options) - set(_KNOWN)):
        raise UsageError(f"unknown option {', '.join(unknown)} (options: {', '.join(_KNOWN)})")
    for name in ("workspace", "table"):
        if name not in options:
            raise UsageError(f'the source "penstock" needs .option("{name}", ...)')
    since, until = (day(options[name]) if options.get(name) else None for name in ("since", "until"))
    named = [part.strip() for part in options.get("customers", "").split(",") if part.strip()]
    customers = set(named) if named else None
    if narrowed.customers is not None:
        customers = narrowed.customers if customers is None else customers & narrowed.customers
    columns = tuple(part.strip() for part in options.get("columns", "").split(",") if part.strip())
    return open_reader(options["workspace"]).vouched(
        options["table"],
        since=max((d for d in (since, narrowed.since) if d), default=None),
        until=min((d for d in (until, narrowed.until) if d), default=None),
        customers=tuple(sorted(customers)) if customers else (),
        columns=columns,
        as_of=options.get("as_of"),
        schema_version=options.get("schema_version"),
    )

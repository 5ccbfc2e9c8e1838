"""Arrow tables as Spark data frames, on classic Spark and on Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows of `table` as a DataFrame. Spark Connect accepts an empty table only with a schema."""
    if table.num_rows:
        return session.createDataFrame(table)
    from pyspark.sql.pandas.types import from_arrow_schema

    return session.createDataFrame([], from_arrow_schema(table.schema, prefer_timestamp_ntz=False))

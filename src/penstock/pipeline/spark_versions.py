"""The supported versions of Spark, and replacements for functions that the older ones lack.

A session may run on another Spark than the installed pyspark: a Connect server, or the Spark of `SPARK_HOME`. A
function is used only if both have it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Version = tuple[int, int]

TESTED: tuple[Version, ...] = ((4, 0), (4, 1), (4, 2), (4, 3))
OLDEST = TESTED[0]
_REPARTITION_BY_ID: Version = (4, 1)
_CONNECT_NEW_SESSION: Version = (4, 3)
_TASK, _POSITION = "_task", "_position"


def require_supported(version: str, where: str) -> None:
    """Raise ConfigError if this version of Spark is too old. `where` names the Spark that has it."""
    if _parsed(version) < OLDEST:
        raise ConfigError(
            f"{where} is Spark {version}, and Penstock needs Spark {_text(OLDEST)} or newer (tested: {tested()}):"
            " install or connect to one of these"
        )


def require_supported_session(spark: SparkSession) -> None:
    """Raise ConfigError if the Spark of this session is too old."""
    require_supported(spark.version, "the Spark of this session")


def require_supported_server(spark: SparkSession) -> None:
    """Raise ConfigError if the Connect server is too old, or older than pyspark and unable to receive rows from it."""
    import pyarrow as pa
    from pyspark.errors import PySparkException

    require_supported(spark.version, "the Connect server")
    server, client = _parsed(spark.version), installed()
    if server >= _parsed(client):
        return
    try:
        spark.createDataFrame(pa.table({"item": [1]}))
    except (PySparkException, ValueError) as error:  # ValueError: pyspark reads a setting of the server as a number
        raise ConfigError(
            f"pyspark {client} cannot send rows to a Connect server with Spark {spark.version}:"
            f" install 'pyspark[connect]=={_text(server)}.*'"
        ) from error


def installed() -> str:
    """The version of the installed pyspark. Raises ConfigError if it is too old or missing. Reads the module and not
    the metadata of the distribution, because the pyspark of a cluster may have none."""
    try:
        from pyspark.version import __version__ as version
    except ImportError as error:
        raise ConfigError(f"pyspark is not installed: install pyspark {_text(OLDEST)} or newer ({error})") from error
    require_supported(version, "the installed pyspark")
    return str(version)


def require_supported_home() -> None:
    """Raise ConfigError if SPARK_HOME names a Spark that is too old: pyspark starts that one instead of its own. Checks
    the names of its jars, because an old Spark fails to start without naming the cause."""
    if home := os.environ.get("SPARK_HOME"):
        for jar in sorted(Path(home, "jars").glob("spark-core_*.jar")):
            require_supported(jar.stem.partition("-core_")[2].partition("-")[2], f"SPARK_HOME ({home})")


def is_tested(version: str) -> bool:
    return _parsed(version) in TESTED


def tested() -> str:
    """The tested versions as text."""
    return ", ".join(_text(version) for version in TESTED)


def has_connect_new_session() -> bool:
    """Whether a Connect session of the installed pyspark can open another one on its server."""
    return _parsed(installed()) >= _CONNECT_NEW_SESSION


def in_tasks(spark: SparkSession, items: pa.Table, tasks: Sequence[int]) -> DataFrame:
    """Return the items as a DataFrame in which task number `tasks[i]` gets item i, in the given order.

    A shuffle keeps no order between the blocks of several map tasks, so each task sorts its items by their position.
    Spark before 4.1 has no `repartitionById`; there the items are partitioned by the hash of a key that has the number
    of the task as its hash."""
    import pyarrow as pa

    count = max(tasks) + 1
    by_id = min(_parsed(spark.version), _parsed(installed())) >= _REPARTITION_BY_ID
    numbers = tasks if by_id else [key_with_hash(task) for task in tasks]
    numbered = items.append_column(_TASK, pa.array(numbers, pa.int32()))
    frame = spark.createDataFrame(numbered.append_column(_POSITION, pa.array(range(len(tasks)), pa.int32())))
    spread = frame.repartitionById(count, _TASK) if by_id else frame.repartition(count, _TASK)
    return spread.sortWithinPartitions(_POSITION).drop(_TASK, _POSITION)


def key_with_hash(value: int) -> int:
    """The int whose hash in Spark SQL is `value`. The hash is Murmur3 of four bytes with the seed 42; each of its steps
    has an inverse, and this function applies the inverses in reverse order. Spark puts a row with the hash `value` into
    partition `value % partitions`."""
    word = value & _WORD
    word ^= word >> 16
    word = word * _inverse(0xC2B2AE35) & _WORD
    word ^= word >> 13 ^ word >> 26
    word = word * _inverse(0x85EBCA6B) & _WORD
    word ^= word >> 16
    word ^= 4  # the number of bytes
    word = (word - 0xE6546B64) * _inverse(5) & _WORD
    word = _rotated_right(word, 13) ^ 42
    word = _rotated_right(word * _inverse(0x1B873593) & _WORD, 15)
    word = word * _inverse(0xCC9E2D51) & _WORD
    return word - (1 << 32) if word >> 31 else word


_WORD = 0xFFFFFFFF


def _inverse(factor: int) -> int:
    return pow(factor, -1, 1 << 32)


def _rotated_right(word: int, bits: int) -> int:
    return (word >> bits | word << 32 - bits) & _WORD


def _parsed(version: str) -> Version:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ConfigError(f"the version {version!r} of Spark cannot be read (tested: {tested()})")
    return int(found[1]), int(found[2])


def _text(version: Version) -> str:
    return ".".join(map(str, version))

"""Paths of raw partitions in the lake. The name of the folder identifies the attempt and can be parsed back."""

from __future__ import annotations

import re

from penstock.errors import RawError, UsageError
from penstock.partition import AttemptKey, PartitionKey, run_id

SEAL = "metadata.json"

_RUN_FOLDER = re.compile(r"raw/([^/]+)/customer_id=([^/]+)/query_name=([^/]+)/logical_date=([^/]+)/run_id=([^/]+)")
_PAYLOAD = re.compile(r"payload-[0-9A-HJKMNP-TV-Z]{26}\.(jsonl|jsonl\.zst|parquet)")


def partition_folder(key: PartitionKey) -> str:
    return (
        f"raw/{key.source}/customer_id={key.customer_id}/query_name={key.query_name}"
        f"/logical_date={key.logical_date.isoformat()}"
    )


def run_folder(attempt: AttemptKey) -> str:
    return f"{partition_folder(attempt.partition)}/run_id={attempt.run_id}"


def parse_run_folder(path: str) -> AttemptKey:
    """The attempt that a folder belongs to. Raises RawError if the path is not such a folder."""
    match = _RUN_FOLDER.fullmatch(path)
    if match is None:
        raise RawError(f"{path!r} is not the folder of a raw partition")
    try:
        return AttemptKey(PartitionKey.parse("/".join(match.groups()[:4])), run_id(match[5]))
    except UsageError as error:
        raise RawError(f"{path!r} is not the folder of a raw partition: {error}") from error


def payload_name(writer_ulid: str, kind: str = "jsonl") -> str:
    """The file of one writer. Two writers of one attempt never write to the same file."""
    return f"payload-{writer_ulid}.{kind}"


def holds_lines(payload: str) -> bool:
    """Whether a payload is lines of JSON from a source. The payload of a model is Parquet."""
    return payload.endswith((".jsonl", ".jsonl.zst"))


def is_compressed(payload: str) -> bool:
    """Whether the lines of a payload are stored as zstd."""
    return payload.endswith(".zst")


def is_payload_name(text: str) -> bool:
    return _PAYLOAD.fullmatch(text) is not None

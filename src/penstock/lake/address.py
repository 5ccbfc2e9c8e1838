"""Opens a lake by its address."""

from __future__ import annotations

import os.path
import re
from urllib.parse import unquote

from penstock.errors import ConfigError
from penstock.lake.local import LocalLake
from penstock.lake.protocol import Lake, checked
from penstock.lake.s3 import S3Lake

_S3 = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


def open_lake(url: str) -> Lake:
    """The lake at an absolute path, a file:// address or s3://bucket/prefix. Sends no request. Raises ConfigError if
    the address is not valid."""
    if url.startswith("s3://"):
        match = _S3.fullmatch(url)
        if match is None:  # not repeated in the error: it may be s3://key:secret@bucket
            raise ConfigError("the address of the lake is not valid: write s3://bucket/prefix, without credentials")
        prefix = (match[2] or "").strip("/")
        return S3Lake(match[1], checked(prefix) if prefix else "")
    path = unquote(url.removeprefix("file://")) if url.startswith("file://") else url
    if "://" in path or not os.path.isabs(path):
        raise ConfigError(f"lake {url!r} is not valid: write an absolute path, or s3://bucket/prefix")
    return LocalLake(os.path.normpath(path))

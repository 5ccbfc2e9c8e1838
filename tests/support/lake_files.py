"""The files of a lake without Penstock's storage layer: a local folder, or S3 through boto3."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3


class LakeFiles:
    """Reads objects by their path below the lake's root. On S3 the AWS variables of the environment name the server."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._client: Any = None
        if self._url.startswith("s3://"):
            region = os.environ.get("AWS_REGION", "us-east-1")
            self._client = boto3.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL"), region_name=region)
            self._bucket, _, self._prefix = self._url.removeprefix("s3://").partition("/")

    def uri(self, path: str) -> str:
        return f"{self._url}/{path}"

    def read(self, path: str) -> bytes | None:
        """The bytes of an object; None if there is none, or if the system cannot read it."""
        if self._client is None:
            try:
                return Path(self._url, path).read_bytes()
            except OSError:
                return None
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{path}")
        except self._client.exceptions.NoSuchKey:
            return None
        data: bytes = found["Body"].read()
        return data

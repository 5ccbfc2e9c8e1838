"""The object store of a workspace: a local folder, or a prefix in S3-compatible storage."""

from __future__ import annotations

from penstock.lake.address import open_lake
from penstock.lake.protocol import Lake

__all__ = ["Lake", "open_lake"]

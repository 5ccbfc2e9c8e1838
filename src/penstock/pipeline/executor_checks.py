"""Checks that run on an executor: whether its own credentials and packages reach the lake and load the sources."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config.settings import SourceSettings
from penstock.errors import PenstockError, TransientError
from penstock.lake import open_lake
from penstock.lake.protocol import LakeUnavailable
from penstock.partition import new_run_id, new_ulid
from penstock.source.protocol import RunContext
from penstock.source.registry import make_source

IDENTITY = "penstock.json"  # in every lake; see warehouse/identity.py
DRIVER_OBJECT = "driver"  # in the folder of the probe; the driver creates it
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


@dataclass(frozen=True, slots=True)
class ExecutorChecks:
    """The checks of one executor. It is pickled, so it holds plain values only."""

    lake: str
    folder: str | None  # the folder of the probe in the lake; None if the lake is only read
    sources: Sequence[SourceSettings]
    seconds: float  # for all requests to the lake

    def __call__(self) -> tuple[list[str], list[str]]:
        """Return the problems that were found, and those that may be over soon."""
        problems, passing = self._lake_problems()
        return [*self._source_problems(), *problems], passing

    def _source_problems(self) -> list[str]:
        problems = []
        for settings in self.sources:
            try:
                make_source(settings, RunContext(new_run_id()))
            except Exception as error:  # noqa: BLE001 - the class of a source is not our code, and may fail in any way
                reason = error if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
                problems.append(
                    f"the source {settings.name} cannot be made: {reason}; executors need its package and credentials"
                )
        return problems

    def _lake_problems(self) -> tuple[list[str], list[str]]:
        found: list[Exception | None] = []
        # A client without credentials asks the metadata service of the cloud for minutes.
        requests = threading.Thread(target=lambda: found.append(self._lake_error()), daemon=True)
        requests.start()
        requests.join(self.seconds)
        error = found[0] if found else LakeUnavailable(f"the lake {self.lake} did not answer in {self.seconds:g} s")
        if error is None:
            return [], []
        hint = _credentials_hint() if self.lake.startswith("s3://") else ""
        return ([], [str(error)]) if isinstance(error, TransientError) and not hint else ([f"{error}{hint}"], [])

    def _lake_error(self) -> Exception | None:
        try:
            lake = open_lake(self.lake)
            known = IDENTITY if self.folder is None else f"{self.folder}/{DRIVER_OBJECT}"
            if not lake.exists(known):
                return PenstockError(
                    f"the lake {self.lake} has no {known}: use a folder that all hosts share, or s3://"
                )
            if self.folder is not None:
                path = f"{self.folder}/{new_ulid()}"
                lake.create(path, b"penstock")
                lake.read(path)
        except Exception as error:  # noqa: BLE001 - a client may fail in any way; the report must arrive
            return error
        return None


def _credentials_hint() -> str:
    if any(name in os.environ for name in _CREDENTIALS):
        return ""
    return f"; the executor has none of {', '.join(_CREDENTIALS)}: give executors credentials of their own"

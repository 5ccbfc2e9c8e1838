"""Listeners for the progress of a run. The terminal's bars are in `penstock.cli.progress`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.plural import counted

if TYPE_CHECKING:
    from penstock.pipeline.spark_jobs import Report

log = logging.getLogger(__name__)


class SilentListener:
    """Ignores everything: the default of callers that show no progress."""

    def stage(self, name: str, partitions: int) -> Report:
        return lambda share: None

    def say(self, message: str) -> None:
        """Do nothing."""


SILENT = SilentListener()


class LineListener:
    """Writes plain lines, for logs: one when a stage begins, and one at each quarter of it."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def stage(self, name: str, partitions: int) -> Report:
        self._write(f"{name}: {counted(partitions)}")
        reported = 0

        def report(share: float) -> None:
            nonlocal reported
            quarter = int(share * 4)
            if reported < quarter < 4:
                reported = quarter
                self._write(f"{name}: {quarter * 25} %")

        return report

    def say(self, message: str) -> None:
        self._write(message)


class LogListener:
    """Reports progress as log lines: one when a stage of a batch ends, and one for each message."""

    def stage(self, name: str, partitions: int) -> Report:
        began = time.monotonic()

        def report(share: float) -> None:
            if share == 1.0:
                facts = {"stage": name, "partitions": partitions, "seconds": round(time.monotonic() - began, 3)}
                log.info("stage.finished", extra={"facts": facts})

        return report

    def say(self, message: str) -> None:
        log.info("note", extra={"facts": {"message": message}})

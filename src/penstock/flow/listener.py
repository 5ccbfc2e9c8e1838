"""The listener that a run reports its progress to. Implementations are in `penstock.observe`."""

from __future__ import annotations

from typing import Protocol

from penstock.pipeline.spark_jobs import Report


class ProgressListener(Protocol):
    """Receives the progress of a run, from several threads."""

    def stage(self, name: str, partitions: int) -> Report:
        """Called when a stage begins. The returned function is called with the finished share of the stage, at the end
        with 1. Stages may overlap."""

    def say(self, message: str) -> None:
        """Called with a message for people, one line."""

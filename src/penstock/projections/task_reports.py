"""Reports of events about single tasks of a run: dispatched, tried, finished, published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.lifecycle import Outcome, Stage
from penstock.partition_set import iter_keys
from penstock.projections.fact import Fact
from penstock.projections.graph import task_key
from penstock.projections.task_states import OUTCOME_CODE


class TaskReport(NamedTuple):
    """One report about one task."""

    task: str
    outcome: int
    attempt: int  # number of the try inside the attempt
    position: int
    closes: bool = False  # it closed the attempt: later reports about the task do not count
    error_class: str | None = None


class TaskReports(NamedTuple):
    final: list[TaskReport]  # the last one of a task, by try and position, wins
    tried: list[TaskReport]  # tries that ended but are not the last: they resolve no edge
    started: list[TaskReport]
    published: list[tuple[str, int]]  # the first publication of a load ends it, by any run


def task_reports(facts: Iterable[Fact]) -> TaskReports:
    found = TaskReports([], [], [], [])
    for fact in facts:
        payload, position = fact.payload, fact.position
        match fact.type:
            case "TaskFinished":
                report = TaskReport(
                    payload.get("task_key") or task_key(payload["stage"], payload["partition_key"]),
                    OUTCOME_CODE[payload["outcome"]],
                    payload.get("try", 1),
                    position,
                    payload.get("closes", False),
                    payload.get("error_class"),
                )
                (found.final if payload.get("final", True) else found.tried).append(report)
            case "SlicesExtracted":
                found.final.extend(_each(fact, Stage.EXTRACT, Outcome.SUCCEEDED))
            case "SlicesUnchanged":
                for stage in Stage:
                    found.final.extend(_each(fact, stage, Outcome.SUCCEEDED))
            case "TasksDropped":
                found.final.extend(_each(fact, payload["stage"], Outcome.CANCELLED))
            case "LoadsFailed":
                found.final.extend(_each(fact, Stage.LOAD, Outcome.FAILED))
            case "TaskStarted":
                found.started.extend(_each(fact, payload["stage"], Outcome.SUCCEEDED))
            case "PartitionPublished":
                found.published.append((task_key(Stage.LOAD, payload["partition_key"]), position))
    return found


def _each(fact: Fact, stage: str, outcome: Outcome) -> Iterator[TaskReport]:
    code, attempt, position = OUTCOME_CODE[outcome], fact.payload.get("try", 1), fact.position
    error_class = fact.payload.get("error_class")
    for partition_key in iter_keys(fact.payload.get("slices", {})):
        yield TaskReport(task_key(stage, partition_key), code, attempt, position, error_class=error_class)
    for key in fact.payload.get("tasks", ()):
        yield TaskReport(key, code, attempt, position, error_class=error_class)

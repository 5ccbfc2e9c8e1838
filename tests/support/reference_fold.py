"""A slow and obvious fold of a run, to compare the real fold with: dictionaries, recursion, one task at a time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import ceil
from typing import Any

from penstock.projections.fact import Fact

Row = dict[str, Any]

_NAMING = ("TaskFinished", "TaskStarted", "LoadsFailed")
_RESOLUTION = {"SUCCEEDED": "SUCCESS", "FAILED": "FAILED", "SKIPPED": "SKIPPED", "CANCELLED": "CANCELLED"}


def reference(facts: Iterable[Fact]) -> tuple[dict[str, Row], dict[tuple[str, str], Row]]:
    """Tasks by key, edges by (upstream, downstream). Only plans of plain tasks, edges and groups are understood."""
    told = sorted({f.position for f in facts})
    by_position = {f.position: f for f in facts}
    events = [by_position[p] for p in told]
    plans = [e for e in events if e.type == "PlanCreated"]
    planned = {key: plan.position for plan in plans for key in plan.payload.get("tasks", ())}
    edges: dict[tuple[str, str], tuple[str, int, bool]] = {}
    rules: dict[tuple[str, str], str] = {}
    for plan in plans:
        for up, down in plan.payload.get("edges", ()):
            edges.setdefault((up, down), ("", plan.position, False))
            rules.setdefault((down, ""), "all")
        for group in plan.payload.get("groups", ()):
            for up in group["tasks"]:
                edges.setdefault((up, group["task"]), (group["name"], plan.position, False))
                rules.setdefault((group["task"], group["name"]), group["rule"])
    over = next((e.position for e in events if e.type == "RunFinished"), None)

    def last_word(key: str) -> Fact | None:
        said = [e for e in events if e.type == "TaskFinished" and e.payload["task_key"] == key and e.payload["final"]]
        said += [e for e in events if e.type == "LoadsFailed" and key in e.payload["tasks"]]
        return max(said, key=lambda e: (e.payload.get("closes", False), e.payload["try"], e.position), default=None)

    def publication(key: str) -> int | None:
        told = (
            e.position for e in events if e.type == "PartitionPublished" and f"load:{e.payload['partition_key']}" == key
        )
        return min(told, default=None)

    def start(key: str) -> int | None:
        return max((e.position for e in events if e.type == "TaskStarted" and key in e.payload["tasks"]), default=None)

    def tries(key: str) -> int:
        named = [e for e in events if key in e.payload.get("tasks", ()) or e.payload.get("task_key") == key]
        return max((e.payload["try"] for e in named if e.type in _NAMING), default=0)

    def satisfying(key: str) -> int | None:
        if publication(key) is not None:
            return max(tries(key), 1)
        word = last_word(key)
        return None if word is None else int(word.payload["try"])

    def resolved(up: str) -> tuple[str | None, int]:
        state, position = state_of(up)
        return (_RESOLUTION[state], position) if state in _RESOLUTION else (None, 0)

    @cache
    def state_of(key: str) -> tuple[str, int]:
        if (published := publication(key)) is not None:
            return "SUCCEEDED", published
        word = last_word(key)
        if word is not None:
            return word.payload.get("outcome", "FAILED"), word.position
        incoming = {pair: facts for pair, facts in edges.items() if pair[1] == key}
        groups: dict[str, list[tuple[str | None, int]]] = {}
        for (up, _), (name, _, _) in incoming.items():
            groups.setdefault(name, []).append(resolved(up))
        broken = {name: found for name, found in groups.items() if not _can_hold(rules[key, name], found)}
        bad = [(r, p) for found in broken.values() for r, p in found if r not in (None, "SUCCESS")]
        if bad:
            skipped = any(r in ("FAILED", "SKIPPED") for r, _ in bad)
            return "SKIPPED" if skipped else "CANCELLED", max(p for _, p in bad)
        if over is not None:
            return "CANCELLED", over
        everything = [found for group in groups.values() for found in group]
        if key not in planned or any(r is None for r, _ in everything):
            return "BLOCKED", planned.get(key, 0)
        ready = max([planned[key], *(p for _, p in everything)])
        begun = start(key)
        return ("RUNNING", max(ready, begun)) if begun else ("READY", ready)

    tasks = {}
    for key in planned:
        state, position = state_of(key)
        incoming = [resolved(up) for up, down in edges if down == key]
        named = [
            e.position
            for e in events
            if e.type in _NAMING and (key in e.payload.get("tasks", ()) or e.payload.get("task_key") == key)
        ]
        named += [
            e.position for e in events if e.type == "PartitionPublished" and f"load:{e.payload['partition_key']}" == key
        ]
        newest = max([position, planned[key], *(p for _, p in incoming), *named])
        tasks[key] = {
            "state": state,
            "attempt": tries(key),
            "deps_total": len(incoming),
            "deps_satisfied_count": sum(r == "SUCCESS" for r, _ in incoming),
            "row_version": by_position[newest].event_id,
        }
    rows = {}
    for (up, down), (_, position, _) in edges.items():
        resolution, since = resolved(up)
        rows[up, down] = {
            "satisfied": resolution == "SUCCESS",
            "resolution": resolution,
            "satisfying_attempt": satisfying(up) if resolution == "SUCCESS" else None,
            "row_version": by_position[since or position].event_id,
        }
    return tasks, rows


def _can_hold(rule: str, found: list[tuple[str | None, int]]) -> bool:
    hopeful = sum(r in (None, "SUCCESS") for r, _ in found)
    if rule == "all":
        return hopeful == len(found)
    kind, _, amount = rule.rpartition(" ")
    return hopeful >= (int(amount) if kind == "at least" else ceil(float(amount) * len(found) - 1e-9))

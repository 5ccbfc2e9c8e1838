"""Folded runs as rows: `tasks` and `dep_satisfaction`, with the columns of ADR-022."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.projections import task_states
from penstock.projections.graph import Ints
from penstock.projections.run_fold import RunFold
from penstock.projections.ulids import moments

MOMENT = pa.timestamp("ms", tz="UTC")
OWNER = [pa.field("tenant_id", pa.string(), False), pa.field("workspace_id", pa.string(), False)]

TASKS = pa.schema(
    [
        *OWNER,
        pa.field("run_id", pa.string(), False),
        pa.field("task_key", pa.string(), False),
        pa.field("stage", pa.string(), False),
        pa.field("asset_key", pa.string()),
        pa.field("partition_key", pa.string()),
        pa.field("state", pa.string(), False),
        pa.field("attempt", pa.int32(), False),
        pa.field("error_class", pa.string()),
        pa.field("deps_total", pa.int32(), False),
        pa.field("deps_satisfied_count", pa.int32(), False),
        pa.field("ready_at", MOMENT),
        pa.field("started_at", MOMENT),
        pa.field("finished_at", MOMENT),
        pa.field("row_version", pa.string(), False),
    ]
)

DEP_SATISFACTION = pa.schema(
    [
        *OWNER,
        pa.field("run_id", pa.string(), False),
        pa.field("upstream_task_key", pa.string(), False),
        pa.field("downstream_task_key", pa.string(), False),
        pa.field("satisfied", pa.bool_(), False),
        pa.field("resolution", pa.string()),
        pa.field("satisfied_at", MOMENT),
        pa.field("satisfying_attempt", pa.int32()),
        pa.field("row_version", pa.string(), False),
    ]
)


def task_rows(run_id: str, fold: RunFold, owner: tuple[str, str], tasks: Ints | None = None) -> pa.Table:
    """Return the rows of these tasks, or of all planned tasks, by task key."""
    graph = fold.graph
    plan = np.array(graph.plan_position, np.int64)
    wanted = np.flatnonzero(plan) if tasks is None else tasks[plan[tasks] > 0]
    names = pa.array([graph.keys[task] for task in wanted.tolist()], pa.string())
    order = pc.sort_indices(names)
    wanted, names = wanted[order.to_numpy()], names.take(order)
    keys: list[str] = names.to_pylist()
    stages, partitions, assets = _parts(keys)
    state = fold.state[wanted]
    ended = state >= task_states.SUCCEEDED
    first, last = graph.groups_of(wanted)
    totals = graph.group_start[last] - graph.group_start[first]
    errors = [fold.errors.get(task) for task in wanted.tolist()]
    columns = [
        *_same(owner, len(keys)),
        _constant(run_id, len(keys)),
        names,
        stages,
        assets,
        partitions,
        _named(task_states.STATES, state),
        pa.array(fold.tries[wanted].astype(np.int32)),
        pa.array(errors, pa.string()),
        pa.array(totals.astype(np.int32)),
        pa.array(fold.satisfied[wanted].astype(np.int32)),
        _moments(fold, fold.ready_position[wanted]),
        _moments(fold, fold.started[wanted]),
        _moments(fold, np.where(ended, fold.state_position[wanted], 0)),
        fold.event_ids.at(fold.row_position[wanted]),
    ]
    return pa.Table.from_arrays(columns, schema=TASKS)


def edge_rows(run_id: str, fold: RunFold, owner: tuple[str, str], tasks: Ints | None = None) -> pa.Table:
    """Return the edges to these tasks, or all edges, by downstream task key."""
    graph = fold.graph
    edges = np.arange(len(graph.up)) if tasks is None else graph.incoming(tasks)
    names = graph.keys
    pairs = [(names[d], names[u]) for d, u in zip(graph.down[edges].tolist(), graph.up[edges].tolist(), strict=True)]
    order = sorted(range(len(pairs)), key=pairs.__getitem__)
    edges = edges[np.array(order, np.int64)]
    resolution, position = fold.resolution[edges], fold.resolved_position[edges]
    satisfied = resolution == task_states.SUCCESS_EDGE
    attempts = fold.outcome_attempt(graph.up[edges]).astype(np.int32)
    columns = [
        *_same(owner, len(edges)),
        _constant(run_id, len(edges)),
        pa.array([pairs[i][1] for i in order], pa.string()),
        pa.array([pairs[i][0] for i in order], pa.string()),
        pa.array(satisfied),
        _named(task_states.RESOLUTIONS, resolution),
        _moments(fold, np.where(satisfied, position, 0)),
        pa.array(attempts, mask=~satisfied),
        fold.event_ids.at(np.where(position > 0, position, graph.edge_position[edges])),
    ]
    return pa.Table.from_arrays(columns, schema=DEP_SATISFACTION)


def _parts(keys: Sequence[str]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Stage, partition and asset of each task key; tasks without a partition have only a stage."""
    stages, partitions, assets = [], [], []
    for key in keys:
        stage, _, partition = key.partition(":")
        parts = partition.split("/")
        stages.append(stage)
        partitions.append(partition or None)
        assets.append(f"{parts[0]}.{parts[2]}" if len(parts) == 4 else None)
    return pa.array(stages, pa.string()), pa.array(partitions, pa.string()), pa.array(assets, pa.string())


def _same(owner: tuple[str, str], count: int) -> list[pa.Array]:
    return [_constant(text, count) for text in owner]


def _constant(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _named(names: Sequence[str], numbers: np.ndarray) -> pa.Array:
    index = pa.array(np.maximum(numbers, 0), mask=numbers < 0)
    return pc.take(pa.array([str(name) for name in names], pa.string()), index)


def _moments(fold: RunFold, positions: Ints) -> pa.Array:
    """The timestamps of the events at these positions, from their ULIDs; null for position 0."""
    return moments(fold.event_ids.at(positions))

"""`python -m bench.soak --minutes M --seed S`: a soak of one workspace, and its report as JSON on stdout."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from bench.options import positive
from bench.soak.tests_path import add_tests_to_path

add_tests_to_path()

from bench.soak.backups import Backups  # noqa: E402 - these need the path
from bench.soak.environment import Environment, environment  # noqa: E402
from bench.soak.faults import Faults  # noqa: E402
from bench.soak.operations import EXCLUSIVE, Operations  # noqa: E402
from bench.soak.plan import FAULTS, actions  # noqa: E402
from bench.soak.processes import Supervisor  # noqa: E402
from bench.soak.report import Report  # noqa: E402
from support.checker import check_workspace, places  # noqa: E402
from support.projections import check_projections  # noqa: E402
from support.state_tables import read_state  # noqa: E402

_AT_ONCE = 2  # operations


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    report = soak(options.minutes, options.seed, options.database, options.lake, options.processes)
    document = json.dumps(report.document(), indent=2)
    print(document)
    if options.output:
        options.output.write_text(document + "\n")
    if report.violations or report.tracebacks:
        found = f"{len(report.violations)} violations, {len(report.tracebacks)} tracebacks"
        print(f"{found}; the workspace is kept in {report.kept}", file=sys.stderr)
        raise SystemExit(1)


def soak(minutes: float, seed: int, database: str = "sqlite", lake: str = "local", processes: int = 2) -> Report:
    """Run the actions of the seed for so long, let everything settle, and check the workspace."""
    report, began = Report(seed, database, lake), time.monotonic()
    with environment(database, lake, seed) as env:
        _prepare(env)
        supervisor, backups = Supervisor(env, seed, processes, readers=2), Backups(env)
        faults = Faults(env, supervisor, report, long=minutes >= 5)
        operations = Operations(env, backups, report)
        try:
            _act(minutes * 60, seed, supervisor, faults, operations, report)
        finally:
            faults.undo_what_is_over(everything=True)
            env.inject_storage_faults(0.0, 0.0)
            supervisor.stop()
        _settle(env, report)
        for line in supervisor.lines():
            report.worked(line)
        report.tracebacks += supervisor.logged_tracebacks()
        report.seconds = time.monotonic() - began
        if report.violations or report.tracebacks:
            env.keep.append(True)
            report.kept = _kept(env, backups)
    return report


def _prepare(env: Environment) -> None:
    """A workspace after its first run, so that operations have something to act on from the beginning."""
    for command, codes in ((("db", "migrate"), (0,)), (("run", "--yes"), (0, 1))):
        done = env.penstock(*command)
        if done.returncode not in codes:
            raise RuntimeError(f"the workspace cannot be made: {done.stderr}")


def _act(
    seconds: float, seed: int, supervisor: Supervisor, faults: Faults, operations: Operations, report: Report
) -> None:
    end = time.monotonic() + seconds
    running: list[Future[None]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # A short soak on a slow machine continues until it has had a fault: otherwise it proves nothing.
        for action in takewhile(lambda _: time.monotonic() < end or not report.faults, actions(seed)):
            pause_until = min(end, time.monotonic() + action.pause)
            while time.monotonic() < pause_until or sum(not one.done() for one in running) >= _AT_ONCE:
                faults.undo_what_is_over()
                supervisor.start_missing()
                time.sleep(0.05)
            if action.kind in FAULTS:
                faults.inject(action)
            elif action.kind in EXCLUSIVE:
                faults.undo_what_is_over(everything=True)
                _finished(running)
                supervisor.stop()
                operations.perform(action)
                supervisor.restart_all()
            else:
                running.append(pool.submit(operations.perform, action))
    _finished(running)


def _finished(running: list[Future[None]]) -> None:
    for one in running:
        one.result()
    running.clear()


def _settle(env: Environment, report: Report) -> None:
    """One clean run, and everything that is left to be published; then nothing may wait, and nothing may be wrong."""
    for command, codes in (
        (("run", "--yes"), (0, 1)),
        (("warehouse", "reconcile"), (0,)),
        (("warehouse", "verify"), (0,)),
    ):
        done = env.penstock(*command, seconds=600)
        if done.returncode not in codes or "Traceback" in done.stderr:
            output = (done.stdout + done.stderr)[-1500:]
            report.violation(f"at the end, `penstock {' '.join(command)}` exits with {done.returncode}: {output}")
    state, _, schema = places(env.folder)
    tables = read_state(state, schema)
    if tables.publish_due:
        report.violation(f"at the end, {len(tables.publish_due)} partitions still wait to be published")
    if left := [row for row in tables.partition_attempt if row["outcome"] is None]:
        report.violation(f"at the end, {len(left)} attempts are still open")
    for violation in [*check_workspace(env.folder), *check_projections(env.folder)]:
        report.violation(violation)
    report.runs_finished = _runs_finished(env)


def _runs_finished(env: Environment) -> int:
    from penstock.app import load_workspace

    ws = load_workspace(env.folder)
    try:
        return sum(row["finished_at"] is not None for row in ws.status.current().runs().to_pylist())
    finally:
        ws.context.database.close()


def _kept(env: Environment, backups: Backups) -> str:
    """The location of the workspace after the end: its folder, and copies of data in servers."""
    target = env.scratch / "kept-servers"
    target.mkdir()
    if env.schema is not None:
        backups.dump(target / "state.sql")
    if env.s3_endpoint is not None:
        import boto3

        bucket = boto3.resource("s3", endpoint_url=env.s3_endpoint, region_name="us-east-1").Bucket("soak")
        for item in bucket.objects.all():
            path = target / item.key
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as output:
                shutil.copyfileobj(item.get()["Body"], output)
    return str(env.scratch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults and operations go on")
    parser.add_argument("--seed", type=int, default=7, help="the sequence of actions")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--lake", choices=("local", "s3"), default="local")
    parser.add_argument("--processes", type=positive, default=2, help="workers with a Spark session, beside readers")
    parser.add_argument("--output", type=Path, help="write the report to this file, too")
    return parser


if __name__ == "__main__":
    main()

"""A writer beside the clients of `bench.console`: it records verdicts on a few partitions at a time, and folds the
events now and then, as runs do, so that the ledger moves while the server reads it. It is a process of its own and ends
with SIGTERM."""

from __future__ import annotations

import argparse
import random
import signal
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from bench.options import positive
from bench.workload import QUERY, SOURCE
from penstock.app import Workspace, load_workspace
from penstock.control.select import Selection
from penstock.errors import ErrorClass
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId, new_run_id, new_ulid
from penstock.state.records import Accepted, Rejected, Verdict

_FOLDED = 50  # transactions after which the projections are brought up to date, as at the end of a run


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    workspace = load_workspace(options.folder)
    written = 0
    print("started", flush=True)
    try:
        written = write(workspace, options.per_second, options.partitions, stop)
    finally:
        workspace.close()
    print(f"recorded {written} verdicts", flush=True)


def write(workspace: Workspace, per_second: int, partitions: int, stop: threading.Event) -> int:
    """Record verdicts until `stop` is set, in `per_second` transactions of a few partitions. Returns their number."""
    context, chance, written = workspace.context, random.Random(11), 0
    token, run = context.workers.register(), new_run_id()
    customers = [customer.id for customer in workspace.settings.customers]
    spans = {span.customer_id: span for span in context.ranges(Selection(queries=QUERY))}
    due, done = time.monotonic(), 0
    while not stop.is_set():
        span = spans[chance.choice(customers)]
        first = span.first + timedelta(days=chance.randrange(max(1, len(span) - partitions)))
        keys = [PartitionKey(SOURCE, span.customer_id, QUERY, first + timedelta(days=day)) for day in range(partitions)]
        written += _judge(workspace, token, run, keys, is_good=chance.random() < 0.9)
        run = new_run_id()  # a partition is attempted once in a run
        done += 1
        if done % _FOLDED == 0:
            workspace.status.advance()
        due += 1 / per_second
        stop.wait(max(0.0, due - time.monotonic()))
    context.workers.stop(token)
    return written


def _judge(workspace: Workspace, token: str, run: RunId, keys: Sequence[PartitionKey], *, is_good: bool) -> int:
    """Attempt these partitions again, and record one verdict for each."""
    context = workspace.context
    plan = workspace.plans.preview(Selection(keys=tuple(keys)), reprocess=True)
    issued, _ = context.control.issue(run, token, new_ulid(), plan.items)
    verdicts: list[Verdict] = [
        Accepted(one.attempt, token, "v1", 1, "0" * 64, 100, "0" * 32)
        if is_good
        else Rejected(one.attempt, token, Stage.VALIDATE, ErrorClass.DATA, "clicks is negative: 1 row")
        for one in issued
    ]
    return len(context.validators.judge(verdicts).applied) if verdicts else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.console_writer", description=__doc__)
    parser.add_argument("folder", type=Path, help="the workspace")
    parser.add_argument("--per-second", type=positive, default=10, help="transactions")
    parser.add_argument("--partitions", type=positive, default=10, help="of one transaction")
    return parser


if __name__ == "__main__":
    main()

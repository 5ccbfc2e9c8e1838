"""One of many workers on one state database, in its own process that may be killed at any moment.

It plans, issues and judges through the real stores; only the data plane is left out: a pseudo-random function of the
partition and the attempt number decides the outcome of an attempt. While it works on a partition it keeps a link with
its name: a process that finds the link of another live process has detected two workers on the same partition.
"""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path

from penstock.clock import utc_now
from penstock.config.assets import Retry
from penstock.control.plan import make_plan
from penstock.control.rescue import rescue
from penstock.control.schedule import schedule
from penstock.db.engine import Database
from penstock.errors import ErrorClass, TransientError
from penstock.expected import ExpectedRange
from penstock.lifecycle import Stage
from penstock.partition import AttemptKey, new_run_id
from penstock.state.control import ControlStore
from penstock.state.reader import StateReader
from penstock.state.records import Accepted, Cancelled, Issued, Rejected, Verdict
from penstock.state.retries import RetryStore
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore, process
from support.builders import contract, query

POLICY = Retry(max_attempts=4, backoff=(timedelta(seconds=1),), jitter=0)
QUERIES = {"campaign_daily": query(retry=POLICY)}
BATCH = 150


def expected(partitions: int) -> list[ExpectedRange]:
    first = query().start_date
    assert first is not None
    days = 50
    return [
        ExpectedRange("demo", str(1_000_000_001 + n), "campaign_daily", first, first + timedelta(days=days - 1))
        for n in range(partitions // days)
    ]


def fate(issued: Issued) -> str:
    die = random.Random(f"{issued.attempt.partition}/{issued.attempt_no}").random()
    return "accept" if die < 0.7 else "transient" if die < 0.85 else "data" if die < 0.9 else "quota"


class Worker:
    def __init__(self, database: Database, places: Path, partitions: int) -> None:
        self._control, self._validator = ControlStore(database, utc_now), ValidatorStore(database, utc_now)
        self._workers, self._reader = WorkerStore(database, utc_now), StateReader(database)
        self._retries = RetryStore(database)
        self._places = places
        self._ranges = expected(partitions)
        self._token = self._workers.register()
        self._me = process(os.getpid()) or ""
        self._random = random.Random(os.getpid())

    def work(self) -> None:
        """Work until nothing is due and no other worker is active."""
        while True:
            rescue(self._workers, self._control, self._validator)
            schedule(self._retries, QUERIES, lambda: 0.5, lambda key: utc_now())
            now = utc_now()
            contracts = {"campaign_daily": contract()}
            plan = make_plan(self._reader, self._ranges, contracts, now, restated={}, limit=20 * BATCH)
            if plan.items:
                self._round(self._random.sample(list(plan.items), min(BATCH, len(plan.items))))
            elif self._is_over():
                return
            else:
                time.sleep(0.1)

    def _is_over(self) -> bool:
        found = self._reader.reasons(self._ranges, utc_now() + timedelta(hours=1), {})
        return not {"open", "missing", "requeued", "retry"} & set(found)

    def _round(self, planned: list) -> None:  # type: ignore[type-arg]
        issued, _ = self._control.issue(new_run_id(), self._token, 1, planned)
        for item in issued:
            self._enter(item.attempt)
        time.sleep(self._random.random() * 0.05)
        for item in issued:
            self._leave(item.attempt)
        closings = [(fate(item), item.attempt) for item in issued]
        self._control.cancel([_cancelled(a, self._token) for kind, a in closings if kind == "quota"])
        verdicts = [_verdict(kind, a, self._token) for kind, a in closings if kind != "quota"]
        self._validator.judge(verdicts)
        self._validator.judge(verdicts)  # delivered twice, as a network would

    def _enter(self, attempt: AttemptKey) -> None:
        place = self._places / str(attempt.partition).replace("/", "_")
        try:
            place.symlink_to(self._me)  # appears whole or not at all
        except FileExistsError:
            owner = str(place.readlink())
            if process(int(owner.partition(":")[0])) == owner:
                (self._places.parent / "caught").write_text(f"{attempt} by {owner} and {self._me}")
            place.unlink()
            place.symlink_to(self._me)

    def _leave(self, attempt: AttemptKey) -> None:
        (self._places / str(attempt.partition).replace("/", "_")).unlink()


def _cancelled(attempt: AttemptKey, token: str) -> Cancelled:
    return Cancelled(attempt, token, Stage.EXTRACT, ErrorClass.QUOTA, "the source asks for a pause")


def _verdict(kind: str, attempt: AttemptKey, token: str) -> Verdict:
    if kind == "accept":
        return Accepted(attempt, token, "v1", 10, f"sha-{attempt.run_id}", 200, "content")
    return Rejected(attempt, token, Stage.EXTRACT, ErrorClass(kind), "the die said so")


def main(url: str, schema: str, folder: str, partitions: str) -> None:
    database = Database(url, schema or None)
    worker = None
    while True:
        try:
            worker = worker or Worker(database, Path(folder) / "places", int(partitions))
            worker.work()
            return
        except TransientError:
            time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One of several processes that spend the quota of one source, and may be killed at any moment.

The clock of the database runs faster here, so that hours pass in seconds. A request is a line in a file: the time at
which it was sent.
"""

from __future__ import annotations

import os
import random
import sys
import time

import sqlalchemy as sa

from penstock.clock import utc_now
from penstock.config.rates import RateLimit, RateWindow
from penstock.db.engine import Database
from penstock.errors import QuotaUsedUp, TransientError
from penstock.source.budget import Budget, RequestClaim
from penstock.state.quota import QuotaStore
from penstock.state.shares import ShareStore
from penstock.state.worker import WorkerStore

SPEED = 1800  # an hour takes two seconds
LIMITS = (RateLimit(200, RateWindow.DAY), RateLimit(40, RateWindow.HOUR))
PACE = 100.0


def fast(real: float, start: float) -> float:
    return start + (real - start) * SPEED


def fast_clock(dialect: str, start: float) -> sa.ColumnElement[object]:
    """The time of the database, as an expression that it evaluates with its own clock."""
    if dialect == "sqlite":
        now = "(julianday('now') - 2440587.5) * 86400.0"
        moment = f"{start!r} + ({now} - {start!r}) * {SPEED}"
        return sa.literal_column(f"strftime('%Y-%m-%dT%H:%M:%f000Z', {moment}, 'unixepoch')")
    now = "extract(epoch FROM clock_timestamp())::double precision"
    return sa.literal_column(f"to_timestamp({start!r} + ({now} - {start!r}) * {SPEED})")


class Spender:
    """Claims requests for jobs of random size, sends them, and returns the unused ones."""

    def __init__(self, database: Database, log: str, start: float) -> None:
        self._quotas = QuotaStore(database, fast_clock(database.dialect, start))  # type: ignore[arg-type]
        self._shares, self._workers = ShareStore(database), WorkerStore(database, utc_now)
        self._token = self._workers.register()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._start = start
        self._read = 0.0
        self._random = random.Random(os.getpid())

    def work(self, until: float) -> None:
        while time.time() < until:
            self._workers.heartbeat(self._token)
            if self._shares.take("ads", PACE, self._token) is None:
                self._workers.mark_dead_workers()  # as the rescue at the start of each run
                time.sleep(0.005)
                continue
            self._check_shares()
            self._job()
            self._shares.release("ads", self._token)
        self._workers.stop(self._token)

    def _check_shares(self) -> None:
        total = sum(share.per_second for share in self._shares.live("ads"))
        if total > PACE + 1e-9:
            os.write(self._log, f"shares {total}\n".encode())

    def _job(self) -> None:
        began, spans = self._wall(), self._random.randint(1, 8)
        claim = self._quotas.claim("ads", LIMITS, spans)
        budget = Budget(
            claim=RequestClaim("c", "ads", claim.requests, began + claim.seconds - 2.0, "-"), wall=self._wall
        )
        budget.allow(claim.requests)
        if self._random.random() < 0.3:  # the window of the claim may end before its requests are sent
            time.sleep(self._random.random())
        try:
            for _ in range(self._random.randint(0, 3 * spans)):
                budget.spend()
                os.write(self._log, f"{self._read!r}\n".encode())
                time.sleep(self._random.random() * 0.004)
        except QuotaUsedUp:
            time.sleep(0.005)
        self._quotas.settle(claim, budget.take_spent(), spans)

    def _wall(self) -> float:
        """The fast time. A request counts at the time at which its budget admitted it."""
        self._read = fast(time.time(), self._start)
        return self._read


def main() -> None:
    url, schema, log, start, until = sys.argv[1:]
    spender = Spender(Database(url, schema or None), log, float(start))
    while time.time() < float(until):
        try:
            spender.work(float(until))
        except TransientError:  # the database was busy
            continue


if __name__ == "__main__":
    main()

"""A workspace behind a real `penstock serve`, with one token of each role and partitions in every state. No Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.app import Workspace, load_workspace
from penstock.control.breaker import observed
from penstock.control.select import Selection
from penstock.lifecycle import AttemptReason
from penstock.partition import PartitionKey, RunId, new_run_id
from penstock.state.records import Observation, Planned
from penstock.state.tokens import TokenRole
from support import builders
from support.api_process import ServerProcess, api_server
from support.harness import FIELDS, Harness
from support.workspaces import customer_id

DAYS = 12
ROLES = tuple(role.value for role in TokenRole)
COMPLAINT = {"check": "range", "message": "clicks is negative", "count": 1, "line": 1, "example": '{"clicks": -1}'}


class ConsoleHouse(Harness):
    """Nine customers with twelve days each up to yesterday. Each subject of a test is a partition of its own."""

    def __init__(self, folder: Path) -> None:
        self.first: date = datetime.now(UTC).date() - timedelta(days=DAYS)
        query = {
            "start_date": self.first.isoformat(),
            "fields": FIELDS,
            "checks": [{"shrink": {"max_drop": 0.5}}],
            "retry": {"max_age": "20000d"},
        }
        super().__init__(folder, query=query)
        self._used = 0

    @cached_property
    def live(self) -> Workspace:
        """The workspace by the real clock."""
        return load_workspace(self.folder)

    def key(self, number: int = 1, day: int = 0) -> PartitionKey:
        """A partition of a customer (from 1) on a day (from 0)."""
        return PartitionKey("demo", customer_id(number), "campaign_daily", self.first + timedelta(days=day))

    @staticmethod
    def parse(key: str) -> PartitionKey:
        return PartitionKey.parse(key)

    def unused(self) -> PartitionKey:
        """A partition that no test has used, of the customers 5 to 9."""
        number, day = divmod(self._used, DAYS)
        self._used += 1
        assert number < 5, "the workspace has no unused partition left"
        return self.key(5 + number, day)

    def reject(self, *keys: PartitionKey, backfill_id: str | None = None) -> RunId:
        """One attempt at each partition that leaves raw data and fails."""
        contract = self.workspace.context.contracts["campaign_daily"]
        reason = AttemptReason.BACKFILL if backfill_id else AttemptReason.MISSING
        seen = self._last_attempts()
        planned = [
            Planned(
                key,
                seen.get(key, 0),
                reason,
                contract.fingerprint,
                contract.schema_version,
                backfill_id=backfill_id,
            )
            for key in keys
        ]
        token, run_id = self.workers.register(), new_run_id()
        issued, refused = self.control.issue(run_id, token, 0, planned)
        assert not refused
        verdicts = [
            builders.rejected(one.attempt, token, complaints=[COMPLAINT], record_count=3, payload_digest="d")
            for one in issued
        ]
        assert len(self.validator.judge(verdicts).applied) == len(keys)
        self.workers.stop(token)
        return run_id

    def open_run(self) -> RunId:
        """A run that is recorded and not finished."""
        run_id = new_run_id()
        self.control.start_run(run_id, self.workers.register(), "ada", {}, 1)
        return run_id

    def backfill(self) -> tuple[str, PartitionKey]:
        """A backfill of one unused partition."""
        key = self.unused()
        new = self.live.backfills.plan(Selection(keys=(key,)), actor="ada")
        self.live.backfills.create(new, Selection(keys=(key,)))
        return new.backfill_id, key

    def open_breaker(self) -> None:
        """The source refuses requests."""
        refused = Observation(refused=3, message="renew the credentials")
        self.live.context.breakers.change("demo", lambda breaker: observed(breaker, refused, self.now()))

    def fill(self) -> None:
        """Partitions in every state: published, failed, held back, terminal, paused, missing; a run and a backfill."""
        self.deliver({self.key(1, day): 10 + day for day in range(6)} | {self.key(2, 0): 5})
        self.publish()
        self.deliver({self.key(1, 5): 99})
        self.reject(self.key(2, 1), self.key(2, 2), self.key(1, 0))
        self.hold_back(self.key(3, 0))
        live = self.live.operations
        live.mark_terminal([self.key(2, 2)], actor="ada", reason="the account is closed")
        live.pause(Selection(customers=customer_id(4)), actor="ada", reason="the account moves")


@dataclass(frozen=True, slots=True)
class Site:
    """A server, its workspace, and the text of a token of each role."""

    house: ConsoleHouse
    server: ServerProcess
    tokens: Mapping[str, str]
    subjects: Mapping[str, str]  # values for the parameters of paths

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def workspace(self) -> Workspace:
        return self.house.live

    def audit(self) -> list[dict[str, Any]]:
        """The audit log, newest line first."""
        return [dict(line) for line in self.workspace.context.state.audit()]


def tokens_of(workspace: Workspace) -> dict[str, str]:
    """A new token of each role; its name is the role."""
    return {role: workspace.tokens.create(role, role, actor="ada")[1] for role in ROLES}


def subjects_of(house: ConsoleHouse) -> dict[str, str]:
    """An existing resource for each parameter of a path, by its name. `left` and `right` are runs of the partition."""
    live = house.live
    key = house.key(1, 5)
    older, newer = (attempt.run_id for attempt in sorted(live.context.state.attempts(key), key=lambda a: a.attempt_no))
    run = house.open_run()
    order = live.orders.create("reconcile", actor="ada")
    plan, _ = live.actions.preview("retry", actor="ada")
    return {
        "source": key.source,
        "customer_id": key.customer_id,
        "query_name": key.query_name,
        "logical_date": key.logical_date.isoformat(),
        "run_id": str(run),
        "order_id": order.order_id,
        "backfill_id": house.backfill()[0],
        "token": plan.token,
        "name": "demo.campaign_daily",
        "left": str(older),
        "right": str(newer),
    }


@contextmanager
def console_site(*options: str, is_empty: bool = False, has_tokens: bool = True) -> Iterator[Site]:
    """A site over a new workspace. An empty one expects partitions, and nothing has been done."""
    with builders.quick_folder() as folder:
        house = ConsoleHouse(Path(folder))
        try:
            if not is_empty:
                house.fill()
            subjects = {} if is_empty else subjects_of(house)
            tokens = tokens_of(house.live) if has_tokens else {}
            with api_server(house.folder, *options) as server:
                yield Site(house, server, tokens, subjects)
        finally:
            house.live.close()
            house.workspace.close()

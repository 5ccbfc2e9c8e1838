"""Actions in two steps: a preview is stored as a plan, and the plan is applied by its token."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.app.context import Context
from penstock.control.action_kinds import (
    BY_KEY,
    BY_PARTITIONS,
    BY_SELECTOR,
    LISTED,
    ORDERED,
    ActionKind,
    ActionPreview,
    ActionRequest,
    compact,
    expand,
    works_on_previewed,
)
from penstock.control.pause import keys_of
from penstock.control.ranges import count_partitions, iter_pages, subtract
from penstock.control.requeue import MOVED
from penstock.control.select import Selection
from penstock.errors import PenstockError, PlanOutdated, StateConflict, TransientError, UsageError
from penstock.expected import ExpectedRange
from penstock.failpoint import reach
from penstock.partition import PartitionKey, RunId, new_ulid, run_id
from penstock.plural import counted
from penstock.state.action_plans import LIFETIME, ActionPlan
from penstock.state.audited import refuse_blank

if TYPE_CHECKING:
    from penstock.app.action_previews import ActionPreviewService
    from penstock.app.backfills import BackfillService
    from penstock.app.operations import OperationService
    from penstock.app.orders import OrderService
    from penstock.app.runs import RunService

log = logging.getLogger(__name__)

_INTERRUPTED = "an earlier call was interrupted while it applied this plan; `penstock audit list` shows what it changed"


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a plan: how many partitions or resources changed, and the partitions that changed in between. If an
    earlier call was interrupted, it changed some of them: then only the note says so."""

    affected: int
    changed: Sequence[ExpectedRange] = ()
    note: str | None = None
    order_id: str | None = None
    backfill_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The result as it is stored."""
        return {
            "affected": self.affected,
            "changed_total": count_partitions(self.changed),
            "changed": [str(key) for key in first_keys(self.changed)],
            "note": self.note,
            "order_id": self.order_id,
            "backfill_id": self.backfill_id,
        }


class ActionService:
    """Previews actions and applies their plans. Each plan is applied once, by the actor who previewed it.

    Between preview and apply others may act. Partitions of the plan that changed are reported and left as they are.
    If the process dies while it applies a plan, the plan can be applied again: what is done is not done twice.
    """

    def __init__(
        self,
        context: Context,
        previews: ActionPreviewService,
        operations: OperationService,
        backfills: BackfillService,
        runs: RunService,
        orders: OrderService,
    ) -> None:
        self._context = context
        self._previews = previews
        self._operations = operations
        self._backfills = backfills
        self._runs = runs
        self._orders = orders
        self._applying: set[str] = set()  # tokens of plans that this process applies now
        self._lock = threading.Lock()

    def preview(
        self,
        kind: ActionKind | str,
        selection: Selection | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        actor: str,
    ) -> tuple[ActionPlan, ActionPreview]:
        """Preview an action and store its plan. Raises the error that the action would raise.

        >>> ws.actions.preview("retry", Selection(since="2024-06-01"), actor="kim")[0].token
        """
        refuse_blank(reason)
        request = ActionRequest(ActionKind(kind), selection or Selection(), dict(options or {}), reason, actor)
        request.refuse_incomplete()
        position = self._context.ledger.newest().position
        now = self._context.now()
        found = self._previews.preview(request, now)
        plan = ActionPlan(
            new_ulid(),
            request.kind.value,
            request.selection.as_dict(),
            request.options,
            reason,
            actor,
            position,
            found.total,
            _digest(found),
            compact(found.ranges),
            now,
            now + LIFETIME,
        )
        self._context.action_plans.add(plan)
        return plan, found

    def get(self, token: str) -> ActionPlan:
        """One plan, with its result if it is applied. Raises UsageError for an unknown token.

        >>> ws.actions.get("01J0000000000000000000000A").applied_at
        """
        return self._context.action_plans.get(token)

    def apply(self, token: str, *, actor: str, worker_token: str) -> ActionPlan:
        """Apply a plan and return it with its result; a repeated call returns the first result. Raises PlanOutdated if
        the plan expired, or if its subject changed since the preview.

        >>> ws.actions.apply("01J0000000000000000000000A", actor="kim", worker_token=worker_token).result
        """
        with self._lock:
            if token in self._applying:
                raise StateConflict(f"plan {token} is being applied: ask for its result later")
            self._applying.add(token)
        try:
            self._context.workers.mark_dead_workers()  # a killed server of this machine holds no plan
            plan = self._context.action_plans.claim(token, actor, worker_token)
            if plan.applied_at is not None:
                return plan
            reach("plan.claimed")
            try:
                applied = self._apply(plan)
                if plan.is_interrupted:
                    applied = replace(applied, changed=(), note=_INTERRUPTED)
                reach("plan.executed")
                self._context.action_plans.finish(token, worker_token, applied.as_dict())
            except PenstockError as error:
                self._release(plan, worker_token, error)
                raise
            return self._context.action_plans.get(token)
        finally:
            with self._lock:
                self._applying.discard(token)

    def _release(self, plan: ActionPlan, worker_token: str, error: PenstockError) -> None:
        """Let the plan be applied again. An error that may pass can come after a part of the changes."""
        is_interrupted = isinstance(error, TransientError)
        try:
            self._context.action_plans.release(plan.token, worker_token, is_interrupted=is_interrupted)
        except PenstockError as failure:  # this process can still apply it: the claim is its own
            log.warning("plan.not_released", extra={"facts": {"act": plan.act, "error": str(failure)}})

    def _apply(self, plan: ActionPlan) -> Applied:
        request = _request(plan)
        if request.kind in BY_PARTITIONS:
            return self._apply_to_partitions(request, plan)
        if request.kind in ORDERED:
            return self._order(request, plan)
        current = self._previews.preview(request, self._context.now())
        if request.kind in BY_SELECTOR:
            planned = expand(plan.items)
            if added := subtract(current.ranges, planned):
                more = counted(count_partitions(added), "partition matches", "partitions match")
                raise PlanOutdated(
                    f"{more} now that did not match at the preview, such as {first_keys(added)[0]}:"
                    " preview the action again"
                )
            return self._apply_selector(request, plan, subtract(planned, current.ranges))
        self._refuse_changed(plan, current)
        return self._apply_to_one(request, current)

    def _refuse_changed(self, plan: ActionPlan, current: ActionPreview) -> None:
        """Raise PlanOutdated if the subject of the plan changed since the preview."""
        if _digest(current) == plan.digest:
            return
        if plan.is_interrupted:
            raise PlanOutdated(f"{_INTERRUPTED}: preview the action again if something is left")
        raise PlanOutdated(f"the subject of plan {plan.token} changed since the preview: preview the action again")

    def _apply_to_partitions(self, request: ActionRequest, plan: ActionPlan) -> Applied:
        """Change the partitions of the plan that still match."""
        planned = expand(plan.items)
        current = self._previews.preview(request, plan.created_at)
        changed = subtract(planned, current.ranges)
        left = subtract(planned, changed)
        total, actor, operations = count_partitions(left), plan.actor, self._operations
        flags = {"plan": plan.token}
        affected = 0
        if total:
            match request.kind:
                case ActionKind.RETRY:
                    affected = operations.retry_keys(
                        _keys(left), total, request.selection, actor=actor, reason=request.reason, flags=flags
                    )
                case ActionKind.MARK_TERMINAL:
                    affected = operations.mark_terminal_ranges(
                        left, request.selection, actor=actor, reason=request.reason, flags=flags
                    )
                case ActionKind.CLEAR_TERMINAL:
                    affected = operations.clear_terminal_ranges(
                        left, request.selection, actor=actor, flags={**flags, **_noted(request)}
                    )
                case other:
                    raise AssertionError(other)
        return Applied(affected, changed)

    def _apply_selector(self, request: ActionRequest, plan: ActionPlan, changed: Sequence[ExpectedRange]) -> Applied:
        actor, flags = plan.actor, {"plan": plan.token}
        match request.kind:
            case ActionKind.PAUSE:
                done = self._operations.pause(request.selection, actor=actor, reason=request.reason, flags=flags)
                return Applied(done or 0, changed)
            case ActionKind.RESUME:
                done = self._operations.resume(request.selection, actor=actor, reason=request.reason, flags=flags)
                return Applied(done or 0, changed)
            case ActionKind.BACKFILL:
                new = self._previews.planned_backfill(request)
                known = {found.backfill_id for found in self._backfills.all()}
                if plan.token not in known:  # an earlier call that died has created it
                    self._backfills.create(
                        replace(new, backfill_id=plan.token), request.selection, flags=_noted(request)
                    )
                return Applied(new.total, changed, backfill_id=plan.token)
            case other:
                raise AssertionError(other)

    def _apply_to_one(self, request: ActionRequest, current: ActionPreview) -> Applied:
        """Change one partition, backfill, run or source."""
        options, actor, flags = request.options, request.actor, _noted(request)
        if request.kind in BY_KEY:
            return Applied(int(self._change_authority(request, current.facts["authority_version"])))
        match request.kind:
            case ActionKind.BACKFILL_PAUSE:
                return Applied(int(self._backfills.pause(options["backfill_id"], actor=actor, flags=flags)))
            case ActionKind.BACKFILL_RESUME:
                return Applied(int(self._backfills.resume(options["backfill_id"], actor=actor, flags=flags)))
            case ActionKind.BACKFILL_CANCEL:
                return Applied(int(self._backfills.cancel(options["backfill_id"], actor=actor, flags=flags)))
            case ActionKind.BACKFILL_RETRY_FAILED:
                if not current.total:
                    return Applied(0)
                new = self._backfills.retry_failed(
                    options["backfill_id"], actor=actor, without_raw=bool(options.get("without_raw")), flags=flags
                )
                return Applied(current.total, backfill_id=new)
            case ActionKind.CLOSE_BREAKER:
                return Applied(int(self._operations.close_breaker(options["source"], actor=actor, flags=flags)))
            case ActionKind.CANCEL_RUN:
                return Applied(int(self._runs.cancel(run_id(options["run_id"]), actor=actor, flags=flags)))
            case other:
                raise AssertionError(other)

    def _change_authority(self, request: ActionRequest, version: int) -> bool:
        operations, key, actor, reason = self._operations, request.key, request.actor, request.reason
        run = RunId(str(request.options.get("run_id")))
        match request.kind:
            case ActionKind.DEMOTE:
                return operations.demote(key, reason=reason or "", actor=actor, expected_version=version)
            case ActionKind.ROLLBACK:
                return operations.rollback(key, run, reason=reason, actor=actor, expected_version=version)
            case ActionKind.APPROVE:
                return operations.approve(key, run, reason=reason or "", actor=actor, expected_version=version)
            case other:
                raise AssertionError(other)

    def _order(self, request: ActionRequest, plan: ActionPlan) -> Applied:
        """Store the order of a plan; its id is the token of the plan, so that it is stored once. An order that works on
        trusted partitions is refused if others than the previewed ones match now, and is limited to those: others may
        match when a control loop executes it."""
        if plan.is_interrupted and self._is_ordered(plan):
            return Applied(plan.total, order_id=plan.token)
        is_limited = works_on_previewed(request.kind, request.options)
        if is_limited:
            self._refuse_changed(plan, self._previews.preview(request, self._context.now()))
        kind = "resume" if request.kind is ActionKind.RESUME_RUN else request.kind.value
        made = self._orders.create(
            kind,
            request.selection,
            request.options,
            reason=request.reason,
            actor=plan.actor,
            order_id=plan.token,
            partitions=plan.items if is_limited else None,
        )
        return Applied(plan.total, order_id=made.order_id)

    def _is_ordered(self, plan: ActionPlan) -> bool:
        """Whether an earlier call stored the order of the plan."""
        try:
            self._orders.get(plan.token)
        except UsageError:
            return False
        return True


def _noted(request: ActionRequest) -> dict[str, Any]:
    """The reason for the audit log, of actions whose commands take none."""
    return {"reason": request.reason} if request.reason else {}


def first_keys(ranges: Sequence[ExpectedRange]) -> list[PartitionKey]:
    """The first partitions of some ranges."""
    page = next(iter_pages(ranges, LISTED), [])
    return keys_of(page)


def _keys(ranges: Sequence[ExpectedRange]) -> Iterator[PartitionKey]:
    return chain.from_iterable(keys_of(page) for page in iter_pages(ranges, MOVED))


def _request(plan: ActionPlan) -> ActionRequest:
    return ActionRequest(
        ActionKind(plan.act), Selection.from_dict(plan.selection), plan.options, plan.reason, plan.actor
    )


def _digest(preview: ActionPreview) -> str:
    """Stands for the subject of an action: a plan is applied to one partition, run or backfill only if it is equal."""
    return hashlib.sha256(repr((preview.total, preview.fingerprint)).encode()).hexdigest()[:32]

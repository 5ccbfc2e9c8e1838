"""Previews of actions: the partitions or the resource that an action would change now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, assert_never

from penstock.app.context import Context
from penstock.control.action_kinds import (
    LISTED,
    ActionKind,
    ActionPreview,
    ActionRequest,
    digest_of,
    works_on_previewed,
)
from penstock.control.pause import keys_of
from penstock.control.ranges import count_partitions, iter_pages, ranges_of, without_frozen
from penstock.control.select import by_kind
from penstock.errors import ActRefused
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey, RunId, run_id

if TYPE_CHECKING:
    from penstock.app.backfills import BackfillService
    from penstock.app.maintenance import MaintenanceService
    from penstock.app.operations import OperationService
    from penstock.app.partitions import PartitionService
    from penstock.app.plans import PlanService
    from penstock.app.rechecks import RecheckService
    from penstock.app.runs import RunService
    from penstock.state.backfills import Backfill


class ActionPreviewService:
    """Finds what an action would change, with the functions behind `--dry-run`. It changes nothing."""

    def __init__(
        self,
        context: Context,
        partitions: PartitionService,
        operations: OperationService,
        backfills: BackfillService,
        plans: PlanService,
        runs: RunService,
        rechecks: RecheckService,
        maintenance: MaintenanceService,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._operations = operations
        self._backfills = backfills
        self._plans = plans
        self._runs = runs
        self._rechecks = rechecks
        self._maintenance = maintenance

    def preview(self, request: ActionRequest, until: datetime) -> ActionPreview:
        """What the action would change. A retry and a terminal mark leave out partitions whose last attempt ended after
        `until`. Raises the error that the action would raise.

        >>> ws.action_previews.preview(request, ws.context.now()).total
        """
        options, chosen, actor = request.options, request.selection, request.actor
        match request.kind:
            case ActionKind.RETRY:
                return self._retry(request, until)
            case ActionKind.MARK_TERMINAL:
                return _of_keys(self._partitions.iter_unmarked(chosen, until))
            case ActionKind.CLEAR_TERMINAL:
                return _of_keys(self._partitions.iter_clearable(chosen))
            case ActionKind.PAUSE | ActionKind.RESUME:
                return self._marks(request)
            case ActionKind.DEMOTE | ActionKind.ROLLBACK | ActionKind.APPROVE:
                return self._authority(request)
            case ActionKind.BACKFILL:
                self.planned_backfill(request)
                return _of_ranges(by_kind(without_frozen(self._context.ranges(chosen))).fetched)
            case ActionKind.BACKFILL_PAUSE:
                named = options["backfill_id"]
                return self._backfill(named, self._backfills.pause(named, actor=actor, dry_run=True))
            case ActionKind.BACKFILL_RESUME:
                named = options["backfill_id"]
                return self._backfill(named, self._backfills.resume(named, actor=actor, dry_run=True))
            case ActionKind.BACKFILL_CANCEL:
                named = options["backfill_id"]
                return self._backfill(named, self._backfills.cancel(named, actor=actor, dry_run=True))
            case ActionKind.BACKFILL_RETRY_FAILED:
                return self._retry_of_backfill(request)
            case ActionKind.CLOSE_BREAKER:
                return self._close_breaker(options["source"])
            case ActionKind.CANCEL_RUN:
                return self._cancel(run_id(options["run_id"]))
            case ActionKind.RUN:
                return self._run(request)
            case ActionKind.RESUME_RUN:
                return self._resume(run_id(options["run_id"]))
            case ActionKind.VALIDATE:
                found = _of_ranges(self._rechecks.candidate_ranges(chosen))
                return replace(found, fingerprint=digest_of(found.ranges))
            case ActionKind.RECONCILE:
                differing, by_act = self._maintenance.differences(LISTED)
                keys = [one.key for one in differing]
                return ActionPreview(sum(by_act.values()), keys, facts={"counts": dict(by_act)})
            case ActionKind.COMPACT:
                files = self._maintenance.compactable(options.get("tables", ()))
                tables = [{"table": f.table, "files_before": f.before, "files_after": f.after} for f in files]
                return ActionPreview(len(tables), facts={"tables": tables})
            case kind:
                assert_never(kind)

    def planned_backfill(self, request: ActionRequest) -> Backfill:
        """The backfill that the action would create.

        >>> ws.action_previews.planned_backfill(request).total
        """
        options = request.options
        return self._backfills.plan(
            request.selection,
            reprocess=bool(options.get("reprocess")),
            chunk_size=int(options.get("chunk_size") or 1000),
            priority=int(options.get("priority") or 0),
            max_chunks=int(options.get("max_chunks") or 2),
            actor=request.actor,
        )

    def _retry(self, request: ActionRequest, until: datetime) -> ActionPreview:
        without_raw = bool(request.options.get("without_raw"))
        found = self._operations.preview_retry(request.selection, without_raw=without_raw, listed=LISTED)
        keys = self._operations.retryable(request.selection, without_raw=without_raw, until=until)
        refused = {str(why): named for why, named in found.refused.items() if named}
        counts = {str(why): count for why, count in found.refusals.items() if count}
        return replace(_of_keys(keys), refusals=counts, refused=refused)

    def _retry_of_backfill(self, request: ActionRequest) -> ActionPreview:
        backfill_id, without_raw = request.options["backfill_id"], bool(request.options.get("without_raw"))
        found = self._backfills.preview_retry(backfill_id, without_raw=without_raw, listed=LISTED)
        wanted = self._backfills.retryable(backfill_id, without_raw=without_raw)
        refused = {str(why): keys for why, keys in found.refused.items() if keys}
        counts = {str(why): count for why, count in found.refusals.items() if count}
        return ActionPreview(
            found.total, found.keys, refusals=counts, refused=refused, fingerprint=_fingerprint(wanted)
        )

    def _marks(self, request: ActionRequest) -> ActionPreview:
        """The partitions that are not paused, or those that are."""
        ranges, status, state = self._context.ranges(request.selection), request.selection.status, self._context.state
        if request.kind is ActionKind.PAUSE:
            return _of_ranges(state.day_ranges(ranges, status=status, paused=False))
        return _of_ranges(state.day_ranges(ranges, status=status, marked=True))

    def _authority(self, request: ActionRequest) -> ActionPreview:
        """One partition. Its attempts and its authority must be the same when the plan is applied."""
        key, operations = request.key, self._operations
        run, reason = RunId(str(request.options.get("run_id"))), request.reason or "preview"
        [view] = self._partitions.find(request.selection)
        match request.kind:
            case ActionKind.DEMOTE:
                changes = operations.demote(key, reason=reason, dry_run=True)
            case ActionKind.ROLLBACK:
                changes = operations.rollback(key, run, dry_run=True)
            case _:
                changes = operations.approve(key, run, reason=reason, dry_run=True)
        state = view.state
        facts = {
            "status": state.status.value,
            "current_run_id": state.current_run_id,
            "authority_version": state.authority_version,
            "run_id": request.options.get("run_id"),
        }
        return ActionPreview(
            int(changes), [key] if changes else [], facts=facts, fingerprint=repr(sorted(facts.items()))
        )

    def _backfill(self, backfill_id: str, changes: bool) -> ActionPreview:
        found = self._backfills.get(backfill_id)
        facts = {"backfill_id": backfill_id, "status": found.status, "partitions": found.total}
        return ActionPreview(int(changes), facts=facts, fingerprint=found.status)

    def _cancel(self, run: RunId) -> ActionPreview:
        changes = self._runs.cancel(run, dry_run=True)
        return ActionPreview(int(changes), self._context.state.open_attempts(run)[:LISTED], facts={"run_id": run})

    def _run(self, request: ActionRequest) -> ActionPreview:
        ranges: Sequence[ExpectedRange] = ()
        if works_on_previewed(request.kind, request.options):
            plan, ranges = self._plans.preview_ranges(request.selection, reprocess=True, limit=LISTED)
        else:
            plan = self._plans.preview(request.selection, limit=LISTED)
        facts = {"reasons": dict(plan.reasons), "held": plan.held, "paused": plan.paused, "waiting": plan.waiting}
        reasons = sorted((str(reason), count) for reason, count in plan.reasons.items())
        return ActionPreview(
            count_partitions(ranges) if ranges else plan.total,
            [item.key for item in plan.items],
            ranges,
            facts=facts,
            fingerprint=f"{reasons} {digest_of(ranges)}",
        )

    def _close_breaker(self, source: str) -> ActionPreview:
        """A breaker. If it closed and opened again, the source has failed again since the preview."""
        is_open = self._operations.close_breaker(source, dry_run=True)
        opened_at = self._context.breakers.get(source).opened_at
        return ActionPreview(int(is_open), facts={"source": source}, fingerprint=f"opened at {opened_at}")

    def _resume(self, run: RunId) -> ActionPreview:
        self._context.run_filters(run)  # refuses an unknown run
        row = self._context.state.run(run)
        if row is not None and row.finished_at is None:
            return ActionPreview(row.planned, self._context.state.open_attempts(run)[:LISTED], facts={"run_id": run})
        left = self._runs.left_of(run)
        if not left:
            raise ActRefused(f"run {run} is over: nothing is left to resume")
        return ActionPreview(len(left), left[:LISTED], facts={"run_id": run})


def _fingerprint(keys: Iterable[PartitionKey]) -> str:
    """Stands for all of these partitions."""
    found = hashlib.sha256()
    for key in keys:
        found.update(f"{key}\n".encode())
    return found.hexdigest()


def _of_keys(keys: Iterable[PartitionKey]) -> ActionPreview:
    """The preview of partitions that come in key order; it lists the first, and holds the others as ranges."""
    return _of_ranges(ranges_of(keys))


def _of_ranges(ranges: Sequence[ExpectedRange]) -> ActionPreview:
    first = next(iter_pages(ranges, LISTED), [])
    return ActionPreview(count_partitions(ranges), keys_of(first), ranges)

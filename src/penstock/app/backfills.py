"""Backfills: create, pause, resume, cancel, retry failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.app.context import Context, audit_entry, os_user
from penstock.control.ranges import clip_to_keys, count_partitions, without_frozen
from penstock.control.requeue import MOVED, RetryPage, RetryPreview, classify_failed
from penstock.control.select import Selection, by_kind
from penstock.errors import UsageError
from penstock.partition import PartitionKey, new_ulid
from penstock.state.audited import AuditedAct
from penstock.state.records import FailedPartition

if TYPE_CHECKING:
    from penstock.app.operations import OperationService
    from penstock.app.plans import PlanService
    from penstock.state.backfills import Backfill, Progress


class BackfillService:
    """Controls backfills. A backfill is one row with a selector and a cursor, however many partitions it has."""

    def __init__(self, context: Context, plans: PlanService, operations: OperationService) -> None:
        self._context = context
        self._plans = plans
        self._operations = operations

    def all(self, *statuses: str) -> list[Backfill]:
        """Every backfill with one of these statuses (all by default), the highest priority first.

        >>> ws.backfills.all("active", "paused")
        """
        return self._context.backfills.all(*statuses)

    def get(self, backfill_id: str) -> Backfill:
        """One backfill. Raises UsageError for an unknown id.

        >>> ws.backfills.get("01J0000000000000000000000A").status
        """
        return self._context.backfills.get(backfill_id)

    def progress(self, backfill_id: str) -> Progress:
        """How many partitions of a backfill are done, by outcome.

        >>> ws.backfills.progress("01J0000000000000000000000A").done
        """
        return self._context.backfills.progress(backfill_id)

    def plan(
        self,
        selection: Selection,
        *,
        reprocess: bool = False,
        chunk_size: int = 1000,
        priority: int = 0,
        max_chunks: int = 2,
        actor: str | None = None,
    ) -> Backfill:
        """A backfill of the selected partitions that is not stored yet; `create` stores it. A selection with a
        `schema_version` reprocesses the partitions of that version. Raises UsageError if no expected partition that can
        be fetched is selected.

        >>> ws.backfills.plan(Selection(since="2024-01-01", until="2024-03-31")).total
        """
        from penstock.state.backfills import Backfill

        ranges = by_kind(without_frozen(self._context.ranges(selection))).fetched
        if selection.names_derived:
            raise UsageError("models are not backfilled: `penstock run` derives the due partitions, `--reprocess` all")
        for key in selection.keys:
            self._plans.refuse_not_due(key)
        if selection.schema_version is not None:
            self.count_of_version(selection)  # refuses a version without runs
            reprocess = True
        # Days that become due later are fresh work, not part of this backfill.
        until = max((span.last for span in ranges), default=None)
        selection = selection if selection.keys else replace(selection, until=until)
        total = count_partitions(ranges)
        if not total:
            raise UsageError(
                "no expected partition that its source still serves matches: `penstock status` counts the expected"
                " partitions"
            )
        return Backfill(
            new_ulid(),
            "active",
            selection.as_dict(),
            reprocess,
            chunk_size,
            priority,
            max_chunks,
            total,
            None,
            self._context.now(),
            actor or os_user(),
        )

    def create(self, backfill: Backfill, selection: Selection, *, flags: Mapping[str, Any] | None = None) -> str:
        """Store a planned backfill; the control loop works on it from its next round. Returns its id. Audited.

        >>> ws.backfills.create(ws.backfills.plan(Selection(since="2024-01-01")), Selection(since="2024-01-01"))
        """
        noted = {
            "reprocess": backfill.reprocess,
            "chunk_size": backfill.chunk_size,
            "priority": backfill.priority,
            "max_chunks": backfill.max_chunks,
            **(flags or {}),
        }
        entry = audit_entry(backfill.created_by, AuditedAct.BACKFILL_CREATE, selection.as_dict(), noted)
        self._context.backfills.create(backfill, entry)
        return backfill.backfill_id

    def pause(
        self,
        backfill_id: str,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        flags: Mapping[str, Any] | None = None,
    ) -> bool:
        """Stop issuing attempts for a backfill. Returns False if it is paused already. Audited.

        >>> ws.backfills.pause("01J0000000000000000000000A", actor="kim")
        """
        return self._move(backfill_id, "paused", AuditedAct.BACKFILL_PAUSE, actor, dry_run, flags)

    def resume(
        self,
        backfill_id: str,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        flags: Mapping[str, Any] | None = None,
    ) -> bool:
        """Continue a paused backfill. Returns False if it is active already. Audited.

        >>> ws.backfills.resume("01J0000000000000000000000A", actor="kim")
        """
        return self._move(backfill_id, "active", AuditedAct.BACKFILL_RESUME, actor, dry_run, flags)

    def cancel(
        self,
        backfill_id: str,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        flags: Mapping[str, Any] | None = None,
    ) -> bool:
        """End a backfill. Open attempts finish. Returns False if it is cancelled already. Audited.

        >>> ws.backfills.cancel("01J0000000000000000000000A", actor="kim")
        """
        return self._move(backfill_id, "cancelled", AuditedAct.BACKFILL_CANCEL, actor, dry_run, flags)

    def _move(
        self,
        backfill_id: str,
        status: str,
        act: AuditedAct,
        actor: str | None,
        dry_run: bool,
        flags: Mapping[str, Any] | None,
    ) -> bool:
        entry = audit_entry(actor, act, {"backfill_id": backfill_id}, flags)
        return self._context.backfills.move(backfill_id, status, entry, rehearsal=dry_run)

    def count_of_version(self, selection: Selection) -> int:
        """The number of trusted runs of the schema version that the selection names and that can be fetched again.
        Raises UsageError for a version without runs, and for the current version.

        >>> ws.backfills.count_of_version(Selection(schema_version="v1"))
        """
        ranges = by_kind(without_frozen(self._context.ranges(selection))).fetched
        versions = self._context.state.versions(ranges)
        wanted = selection.schema_version
        if wanted not in versions:
            known = ", ".join(f"{name} ({count:,})" for name, count in sorted(versions.items())) or "none"
            raise UsageError(f"no trusted run here is of schema version {wanted} (there are: {known})")
        queries = {span.query_name for span in ranges}
        if all(self._context.contracts[name].schema_version == wanted for name in queries):
            raise UsageError(f"{wanted} is the schema version that is fetched today: change it in the workspace file")
        return versions[wanted]

    def preview_retry(self, backfill_id: str, *, without_raw: bool = False, listed: int = 100) -> RetryPreview:
        """The partitions that `retry_failed` requeues and those that it refuses, by the rule of
        `OperationService.preview_retry`.

        >>> ws.backfills.preview_retry("01J0000000000000000000000A").total
        """
        found = RetryPreview(listed, self._context.now())
        for page in self._failure_pages(backfill_id, without_raw):
            found.add(page)
        return found

    def retryable(self, backfill_id: str, *, without_raw: bool = False) -> Iterator[PartitionKey]:
        """The partitions that `retry_failed` requeues, in key order.

        >>> list(ws.backfills.retryable("01J0000000000000000000000A"))
        """
        return (key for page in self._failure_pages(backfill_id, without_raw) for key in page.wanted)

    def _failure_pages(self, backfill_id: str, without_raw: bool) -> Iterator[RetryPage]:
        """The partitions that failed in a backfill without a later attempt, in key order, sorted out page by page.
        Leaves out partitions that left the configuration."""
        self._context.backfills.get(backfill_id)  # refuses an unknown one
        due = {(span.source, span.customer_id, span.query_name): span for span in self._context.ranges(Selection())}
        after: PartitionKey | None = None
        while keys := self._context.backfills.failed(backfill_id, after=after, limit=MOVED):
            after = keys[-1]
            spans = {key: due[key[:3]] for key in keys if key[:3] in due}
            failed = [key for key, span in spans.items() if span.first <= key.logical_date <= span.last]
            known = {found.key: found for found in self._context.state.failed(clip_to_keys(due.values(), failed))}
            # A success partition whose re-fetch failed is not in `known`: no rule refuses its retry.
            found = [known.get(key, FailedPartition(key, marked=False, left_nothing=False)) for key in failed]
            frozen = {key for key in failed if spans[key].is_frozen(key.logical_date)}
            yield classify_failed(found, frozen, without_raw=without_raw)

    def _failed(self, page: RetryPage) -> list[PartitionKey]:
        """The partitions of the page that are failed, so that a retry moves them."""
        wanted = set(page.wanted)
        found = (
            self._context.state.failed(clip_to_keys(self._context.ranges(Selection()), page.wanted)) if wanted else []
        )
        return [one.key for one in found if one.key in wanted]

    def retry_failed(
        self,
        backfill_id: str,
        *,
        actor: str | None = None,
        without_raw: bool = False,
        preview: RetryPreview | None = None,
        flags: Mapping[str, Any] | None = None,
        report: Callable[[float], None] = lambda share: None,
    ) -> str:
        """Requeue the failures of a backfill that `preview` counted, and create a backfill that attempts them, with the
        chunk size and the priority of the old one. Returns the id of the new backfill; while an earlier retry is active
        or paused, the id of that one. Audited.

        A crash between the two steps loses nothing: the partitions are pending, and a repeated call creates the
        backfill for them.

        >>> ws.backfills.retry_failed("01J0000000000000000000000A", actor="kim")
        """
        old = self._context.backfills.get(backfill_id)
        if preview is None:
            preview = self.preview_retry(backfill_id, without_raw=without_raw, listed=0)
        started = next(
            (
                b
                for b in self._context.backfills.all("active", "paused")
                if b.selector.get("retry_of") == old.backfill_id
            ),
            None,
        )
        now = self._context.now()
        noted = {"without_raw": without_raw, **(flags or {})}
        entry = audit_entry(actor, AuditedAct.BACKFILL_RETRY_FAILED, {"backfill_id": old.backfill_id}, noted)
        if started is not None:
            # It attempts these, too, unless they are failed because an earlier call refused them.
            refused = [key for page in self._failure_pages(old.backfill_id, without_raw) for key in self._failed(page)]
            if refused:
                self._operations.requeue(iter(refused), len(refused), entry, report)
            return started.backfill_id
        keys = (key for page in self._failure_pages(old.backfill_id, without_raw) for key in page.wanted)
        self._operations.requeue(keys, preview.total, entry, report)
        new = replace(
            old,
            backfill_id=new_ulid(),
            status="active",
            selector={"retry_of": old.backfill_id},
            total=self._context.backfills.failed_count(old.backfill_id, before=now),
            cursor=None,
            created_at=now,
            created_by=entry.actor,
            finished_at=None,
        )
        self._context.backfills.create(new, entry)
        return new.backfill_id

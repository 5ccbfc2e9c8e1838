"""Actions of operators on partitions and sources. Each action has a line in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.app.context import Context, audit_entry
from penstock.contract.contract import Contract
from penstock.control.pause import keys_of, scopes, scopes_of
from penstock.control.ranges import count_partitions, iter_pages, ranges_of
from penstock.control.requeue import MOVED, SCANNED, RetryPage, RetryPreview, classify_failed
from penstock.control.select import Selection
from penstock.errors import ActRefused, UsageError
from penstock.failpoint import reach
from penstock.lifecycle import Outcome, PartitionStatus
from penstock.partition import PartitionKey, RunId, run_id
from penstock.state.audited import AuditedAct, refuse_blank
from penstock.state.control import AuditEntry
from penstock.state.records import Attempt, Breaker

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from penstock.expected import ExpectedRange
    from penstock.state.authority import AuthorityStore


class OperationService:
    """Retry, pause, resume, demote, roll back, approve, and mark partitions.

    Every action takes the `actor` (default: the operating-system user) and records it in the audit log, with the
    selection and with `flags`: further options of the caller that the audit log keeps. A repeated action changes
    nothing.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def preview_retry(self, selection: Selection, *, without_raw: bool = False, listed: int = 100) -> RetryPreview:
        """The partitions that `retry` requeues, their number, and the partitions that it refuses with the reason.
        Lists the first `listed` of each.

        >>> ws.operations.preview_retry(Selection(since="2024-06-01")).total
        """
        found = RetryPreview(listed, self._context.now())
        for page in self._retry_pages(selection, without_raw, None):
            found.add(page)
        return found

    def retry(
        self,
        selection: Selection,
        *,
        actor: str | None = None,
        reason: str | None = None,
        without_raw: bool = False,
        preview: RetryPreview | None = None,
        flags: Mapping[str, Any] | None = None,
        report: Callable[[float], None] = lambda share: None,
    ) -> int:
        """Move failed partitions back to pending, so that the next run attempts them. Returns the number moved.

        Moves what `preview` counted; a partition that fails after the preview stays failed. Without `preview`, it makes
        one first. `without_raw` includes partitions whose attempts left nothing in the raw sink.

        >>> ws.operations.retry(Selection(customers="1000000001"), actor="kim", reason="source fixed")
        """
        refuse_blank(reason)
        if preview is None:
            preview = self.preview_retry(selection, without_raw=without_raw, listed=0)
        noted = {**({"reason": reason} if reason else {}), "without_raw": without_raw, **(flags or {})}
        entry = audit_entry(actor, AuditedAct.STATE_RETRY, selection.as_dict(), noted)
        pages = self._retry_pages(selection, without_raw, preview.moment)
        keys = (key for page in pages for key in page.wanted)
        return self.requeue(islice(keys, preview.total), preview.total, entry, report)

    def retry_keys(
        self,
        keys: Iterator[PartitionKey],
        total: int,
        selection: Selection,
        *,
        actor: str | None = None,
        reason: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> int:
        """Requeue those of these partitions that are failed. Returns the number moved. `selection` is what the audit
        log records.

        >>> ws.operations.retry_keys(iter([key]), 1, Selection(keys=(key,)), actor="kim")
        """
        noted = {**({"reason": reason} if reason else {}), **(flags or {})}
        entry = audit_entry(actor, AuditedAct.STATE_RETRY, selection.as_dict(), noted)
        return self.requeue(keys, total, entry, lambda share: None)

    def retryable(
        self, selection: Selection, *, without_raw: bool = False, until: datetime | None = None
    ) -> Iterator[PartitionKey]:
        """The partitions that `retry` requeues, in key order; with `until`, only those whose last attempt ended no
        later.

        >>> list(ws.operations.retryable(Selection(since="2024-06-01")))
        """
        return (key for page in self._retry_pages(selection, without_raw, until) for key in page.wanted)

    def _retry_pages(self, selection: Selection, without_raw: bool, until: datetime | None) -> Iterator[RetryPage]:
        """The failed partitions of a selection in key order, sorted out page by page; with `until`, only those whose
        last attempt ended no later."""
        ranges = self._context.ranges(selection)
        if selection.status not in (None, PartitionStatus.FAILED):
            return
        for some in iter_pages(ranges, SCANNED):
            due = {(span.source, span.customer_id, span.query_name): span for span in some}
            failed = self._context.state.failed(some, until)
            frozen = {f.key for f in failed if due[f.key[:3]].is_frozen(f.key.logical_date)}
            yield classify_failed(failed, frozen, without_raw=without_raw)

    def requeue(
        self, keys: Iterator[PartitionKey], total: int, entry: AuditEntry, report: Callable[[float], None]
    ) -> int:
        """Move these partitions from failed to pending, in pages; returns the number moved. Each page is a transaction:
        after a kill, the finished pages are moved, the audit log has the line `begun`, and the next call moves the
        rest."""
        control = self._context.control
        if total <= MOVED:
            return control.requeue(list(islice(keys, MOVED)), entry)
        with self._context.audited(entry, total) as action:
            done = 0
            while page := list(islice(keys, MOVED)):
                action.affected += control.requeue(page)
                done += len(page)
                report(min(1.0, done / total))
                reach("retry.page")
        return action.affected

    def pause(
        self,
        selection: Selection,
        *,
        actor: str | None = None,
        reason: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Stop all attempts of the selected partitions. Returns how many expected partitions it paused; None if all
        were paused before.

        Filters are stored as a selector, which also covers days and customers that are added later. Pending partitions
        have no rows, so their ranges of days are stored as selectors. Keys, and partitions of another status, are
        marked one by one.

        >>> ws.operations.pause(Selection(customers="1000000001"), actor="kim", reason="moved account")
        """
        refuse_blank(reason)
        entry = audit_entry(actor, AuditedAct.STATE_PAUSE, selection.as_dict(), {"reason": reason, **(flags or {})})
        ranges, status, state = self._context.ranges(selection), selection.status, self._context.state

        def count(connection: Connection) -> int:
            return state.count(ranges, paused=False, within=connection)

        def mark(page: Sequence[ExpectedRange], audited: bool) -> int:
            return self._context.marks.pause(keys_of(page), reason, entry, audited=audited)

        if selection.keys or status not in (None, PartitionStatus.PENDING):
            return self._in_pages(state.day_ranges(ranges, status=status, paused=False), mark, entry)
        if status is None:
            return self._context.pauses.pause(scopes(selection), reason, entry, count)
        pending = state.day_ranges(ranges, status=status, paused=False)
        if not pending:
            return None
        return self._context.pauses.pause(scopes_of(pending), reason, entry, lambda _: count_partitions(pending))

    def resume(
        self,
        selection: Selection,
        *,
        actor: str | None = None,
        reason: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> int | None:
        """End pauses of the selected partitions, also a part of a pause by selector, and the holds that `rollback` and
        `approve` put on restatement. Returns how many expected partitions it resumed; None if none was paused.

        >>> ws.operations.resume(Selection(customers="1000000001"), actor="kim")
        """
        refuse_blank(reason)
        noted = {**({"reason": reason} if reason else {}), **(flags or {})}
        entry = audit_entry(actor, AuditedAct.STATE_RESUME, selection.as_dict(), noted)
        ranges, status, state = self._context.ranges(selection), selection.status, self._context.state

        def resume(page: Sequence[ExpectedRange], audited: bool) -> int | None:
            return self._context.pauses.resume(scopes_of(page), entry, partial(count, page), audited=audited)

        def count(counted: Sequence[ExpectedRange], connection: Connection) -> int:
            return state.count(counted, marked=True, within=connection)

        if not selection.keys and status is None:
            return self._context.pauses.resume(scopes(selection), entry, partial(count, ranges))
        return self._in_pages(state.day_ranges(ranges, status=status, marked=True), resume, entry)

    def _in_pages(
        self,
        ranges: Sequence[ExpectedRange],
        change: Callable[[Sequence[ExpectedRange], bool], int | None],
        entry: AuditEntry,
    ) -> int | None:
        """Change exactly these partitions, in transactions that block other writers only briefly. After a kill, the
        finished pages are changed, the audit log has the line `begun`, and the next call changes the rest."""
        total = count_partitions(ranges)
        if total <= MOVED:
            return change(ranges, True) if total else None
        with self._context.audited(entry, total) as action:
            for page in iter_pages(ranges, MOVED):
                action.affected += change(page, False) or 0
                reach("marks.page")
        return action.affected

    def mark_terminal(
        self,
        keys: Sequence[PartitionKey],
        *,
        actor: str | None = None,
        reason: str | None = None,
        selection: Selection | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> int:
        """Mark failed partitions as terminal: no retry, by policy or by hand, until `clear_terminal`. Returns the
        number marked. `selection` is what the audit log records instead of the keys. More than 10,000 partitions are
        marked in several transactions; the next call marks the rest after a kill.

        >>> ws.operations.mark_terminal([key], actor="kim", reason="account closed")
        """
        chosen = selection or Selection(keys=tuple(keys))
        return self.mark_terminal_ranges(ranges_of(sorted(set(keys))), chosen, actor=actor, reason=reason, flags=flags)

    def mark_terminal_ranges(
        self,
        ranges: Sequence[ExpectedRange],
        selection: Selection,
        *,
        actor: str | None = None,
        reason: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> int:
        """Mark the failed partitions of these ranges, as `mark_terminal` does. The audit log records the selection.

        >>> ws.operations.mark_terminal_ranges(ws.context.ranges(Selection()), Selection(), actor="kim")
        """
        refuse_blank(reason)
        noted = {"reason": reason, **(flags or {})}
        entry = audit_entry(actor, AuditedAct.STATE_MARK_TERMINAL, selection.as_dict(), noted)

        def mark(page: Sequence[ExpectedRange], audited: bool) -> int:
            return self._context.marks.mark_terminal(keys_of(page), reason, entry, audited=audited)

        return self._in_pages(ranges, mark, entry) or 0 if ranges else mark(ranges, True)

    def clear_terminal(
        self,
        keys: Sequence[PartitionKey],
        *,
        actor: str | None = None,
        selection: Selection | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> int:
        """Remove terminal marks and reset the count of failures; `retry` can then requeue the partitions. Returns the
        number cleared. More than 10,000 partitions are cleared in several transactions, as in `mark_terminal`.

        >>> ws.operations.clear_terminal([key], actor="kim")
        """
        chosen = selection or Selection(keys=tuple(keys))
        return self.clear_terminal_ranges(ranges_of(sorted(set(keys))), chosen, actor=actor, flags=flags)

    def clear_terminal_ranges(
        self,
        ranges: Sequence[ExpectedRange],
        selection: Selection,
        *,
        actor: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> int:
        """Clear the partitions of these ranges, as `clear_terminal` does. The audit log records the selection.

        >>> ws.operations.clear_terminal_ranges(ws.context.ranges(Selection()), Selection(), actor="kim")
        """
        entry = audit_entry(actor, AuditedAct.STATE_CLEAR_TERMINAL, selection.as_dict(), flags)

        def clear(page: Sequence[ExpectedRange], audited: bool) -> int:
            return self._context.marks.clear_terminal(keys_of(page), entry, audited=audited)

        return self._in_pages(ranges, clear, entry) or 0 if ranges else clear(ranges, True)

    def demote(
        self,
        key: PartitionKey | str,
        *,
        reason: str,
        actor: str | None = None,
        dry_run: bool = False,
        expected_version: int | None = None,
    ) -> bool:
        """Withdraw the trusted run of a partition: readers stop seeing its rows at once. Returns False if it was
        withdrawn before. Raises PlanOutdated if its authority has another version than `expected_version`.

        >>> ws.operations.demote("demo/1000000001/campaign_daily/2024-06-01", reason="wrong currency")
        """
        refuse_blank(reason)
        chosen = _selected(key)
        entry = audit_entry(actor, AuditedAct.STATE_DEMOTE, chosen.as_dict(), {"reason": reason})
        self._context.ranges(chosen)
        with self._context.refusals_audited(entry, dry_run=dry_run):
            return self._authority(dry_run, expected_version).demote(chosen.keys[0], reason, entry)

    def rollback(
        self,
        key: PartitionKey | str,
        to: RunId | str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        dry_run: bool = False,
        expected_version: int | None = None,
    ) -> bool:
        """Trust an earlier accepted run again. Returns False if that run is trusted already. Raises ActRefused for a
        run that was not accepted, was demoted, has another schema version or no raw partition.

        >>> ws.operations.rollback(key, "01J0000000000000000000000A", reason="restated wrongly")
        """
        from penstock.control.approval import refuse_without_raw
        from penstock.raw.reader import RawReader

        refuse_blank(reason)
        chosen, run = _selected(key), run_id(to)
        noted = {"to": run, "reason": reason}
        entry = audit_entry(actor, AuditedAct.STATE_ROLLBACK, chosen.as_dict(), noted)
        with self._context.refusals_audited(entry, dry_run=dry_run):
            attempt = self._attempt(chosen, run)
            if attempt.was_trusted:
                refuse_without_raw(attempt, RawReader(self._context.lake))
            return self._authority(dry_run, expected_version).rollback(chosen.keys[0], run, entry, reason)

    def approve(
        self,
        key: PartitionKey | str,
        run: RunId | str,
        *,
        reason: str,
        actor: str | None = None,
        dry_run: bool = False,
        expected_version: int | None = None,
    ) -> bool:
        """Accept a run that only guards (shrink, compare) rejected. Returns False if that run is trusted already.
        Raises ActRefused for a run with other complaints.

        >>> ws.operations.approve(key, "01J0000000000000000000000A", reason="campaign ended")
        """
        from penstock.control.approval import refuse_other_complaints, refuse_without_raw
        from penstock.raw.reader import RawReader

        refuse_blank(reason)
        chosen, named = _selected(key), run_id(run)
        noted = {"run": named, "reason": reason}
        entry = audit_entry(actor, AuditedAct.STATE_APPROVE, chosen.as_dict(), noted)
        with self._context.refusals_audited(entry, dry_run=dry_run):
            attempt = self._attempt(chosen, named)
            body = self._context.state.contract(attempt.contract_fingerprint)
            state = self._context.state.state(chosen.keys[0])
            trusted = state is not None and (state.status, state.current_run_id) == (PartitionStatus.SUCCESS, named)
            if attempt.outcome is Outcome.FAILED and not trusted and body is not None:
                refuse_other_complaints(attempt, Contract.from_body(body))
                refuse_without_raw(attempt, RawReader(self._context.lake))
            return self._authority(dry_run, expected_version).approve(chosen.keys[0], named, reason, entry)

    def _authority(self, dry_run: bool, expected_version: int | None) -> AuthorityStore:
        from penstock.state.authority import AuthorityStore

        return AuthorityStore(self._context.database, self._context.clock, dry_run, expected_version)

    def _attempt(self, chosen: Selection, run: RunId) -> Attempt:
        self._context.ranges(chosen)
        [key] = chosen.keys
        attempts = self._context.state.attempts(key)
        for attempt in attempts:
            if attempt.run_id == run:
                return attempt
        known = ", ".join(attempt.run_id for attempt in attempts) or "none"
        raise ActRefused(f"{key} has no attempt in run {run} (runs: {known})")

    def close_breaker(
        self,
        source: str,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        flags: Mapping[str, Any] | None = None,
    ) -> bool:
        """Issue attempts for a source again, without waiting for a probe. Returns False if its breaker was not open; a
        dry run changes nothing and returns whether it is open.

        >>> ws.operations.close_breaker("demo", actor="kim")
        """
        sources = self._context.settings.sources
        if source not in sources:
            raise UsageError(f"unknown source {source} (known: {', '.join(sources)})")
        if dry_run:
            return self._context.breakers.get(source) != Breaker(source)
        entry = audit_entry(actor, AuditedAct.CLOSE_BREAKER, {"source": source}, flags)
        return self._context.breakers.close(source, entry)


def _selected(key: PartitionKey | str) -> Selection:
    return Selection(keys=(PartitionKey.parse(key) if isinstance(key, str) else key,))

"""What operators do: retry, demote, roll back, approve, check again, cancel, and bring customers up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from penstock import interrupts
from penstock.app.explaining import Explaining
from penstock.app.opened import os_user
from penstock.control.select import Selection
from penstock.errors import ActRefused, PenstockError, TransientError, UsageError
from penstock.failpoint import reach
from penstock.lifecycle import Outcome, PartitionStatus
from penstock.partition import MODELS, AttemptKey, PartitionKey, RunId, new_run_id
from penstock.state.audited import AuditedAct, refuse_blank
from penstock.state.control import AuditEntry, ControlStore
from penstock.state.records import Attempt
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlalchemy.engine import Connection

    from penstock.contract.contract import Contract
    from penstock.control.customers import CustomerPlan
    from penstock.control.requeue import RetryPage, RetryPreview
    from penstock.control.unfinished import Unfinished
    from penstock.expected import ExpectedRange
    from penstock.flow.recheck import Rechecked
    from penstock.flow.summary import Watcher
    from penstock.state.recheck import FailedRecheck


class Acting(Explaining):
    """Explicit acts, each with its line in the audit log."""

    def retry_candidates(self, selection: Selection, *, without_raw: bool, listed: int = 100) -> RetryPreview:
        """How many partitions `retry_selected` would requeue, how many it refuses and why, and the first of each."""
        from penstock.control.requeue import RetryPreview

        found = RetryPreview(listed, self.now())
        for page in self._retry_pages(selection, without_raw, None):
            found.add(page)
        return found

    def _retry_pages(self, selection: Selection, without_raw: bool, until: datetime | None) -> Iterator[RetryPage]:
        """The failed partitions of a selection, in key order, sorted out page by page; with `until`, only those whose
        last attempt ended no later."""
        from penstock.control.ranges import iter_pages
        from penstock.control.requeue import SCANNED, sort_out

        ranges = self.ranges(selection)
        if selection.status not in (None, PartitionStatus.FAILED):
            return
        for some in iter_pages(ranges, SCANNED):
            due = {(span.source, span.customer_id, span.query_name): span for span in some}
            failed = self.reader.failed(some, until)
            frozen = {f.key for f in failed if due[f.key[:3]].is_frozen(f.key.logical_date)}
            yield sort_out(failed, frozen, without_raw=without_raw)

    def retry_selected(
        self,
        selection: Selection,
        entry: AuditEntry,
        *,
        without_raw: bool,
        total: int,
        until: datetime | None = None,
        report: Callable[[float], None] = lambda share: None,
    ) -> int:
        """failed -> pending for what `retry_candidates` counted as `total` at the moment `until`: what failed since
        then stays failed. Says how many moved."""
        keys = (key for page in self._retry_pages(selection, without_raw, until) for key in page.wanted)
        return self._requeue(islice(keys, total), total, entry, report)

    def retry(self, keys: Sequence[PartitionKey], entry: AuditEntry) -> int:
        """failed -> pending, in the audit log. Says how many moved."""
        return self._requeue(iter(keys), len(keys), entry, lambda share: None)

    def _requeue(
        self, keys: Iterator[PartitionKey], total: int, entry: AuditEntry, report: Callable[[float], None]
    ) -> int:
        """In pages. More than one page is more than one transaction: a kill leaves the pages that were moved, the line
        `begun` in the audit log, and the rest for the next call, which moves nothing twice."""
        from penstock.control.requeue import MOVED

        control = ControlStore(self.database, self._clock)
        if total <= MOVED:
            return control.requeue(list(islice(keys, MOVED)), entry)
        with self.audited(entry, total) as act:
            done = 0
            while page := list(islice(keys, MOVED)):
                act.affected += control.requeue(page)
                done += len(page)
                report(min(1.0, done / total))
                reach("retry.page")
        return act.affected

    def pause_partitions(self, selection: Selection, reason: str | None, entry: AuditEntry) -> int | None:
        """Stop all attempts of the selected partitions. Filters are kept as a selector, which also holds for days and
        customers that come later. Partitions that are pending now have no rows, so their ranges of days are kept as
        selectors; keys, and partitions with another status, are marked one by one. Returns how many partitions that are
        expected today it paused; None if all were paused."""
        from penstock.control.pause import keys_of, scopes, scopes_of
        from penstock.control.ranges import count_partitions

        refuse_blank(reason)
        ranges, status = self.ranges(selection), selection.status

        def count(connection: Connection) -> int:
            return self.reader.count(ranges, paused=False, within=connection)

        def mark(page: Sequence[ExpectedRange], audited: bool) -> int:
            return self.marks.pause(keys_of(page), reason, entry, audited=audited)

        if selection.keys or status not in (None, PartitionStatus.PENDING):
            return self._in_pages(self.reader.day_ranges(ranges, status=status, paused=False), mark, entry)
        if status is None:
            return self.pauses.pause(scopes(selection), reason, entry, count)
        pending = self.reader.day_ranges(ranges, status=status, paused=False)
        return (
            self.pauses.pause(scopes_of(pending), reason, entry, lambda _: count_partitions(pending))
            if pending
            else None
        )

    def resume_partitions(self, selection: Selection, entry: AuditEntry) -> int | None:
        """Take back pauses and holds of the selected partitions, also inside a selector that is paused otherwise. Says
        how many partitions that are expected today are resumed; None if there was nothing to take back."""
        from penstock.control.pause import scopes, scopes_of

        ranges, status = self.ranges(selection), selection.status

        def resume(page: Sequence[ExpectedRange], audited: bool) -> int | None:
            return self.pauses.resume(scopes_of(page), entry, partial(count, page), audited=audited)

        def count(counted: Sequence[ExpectedRange], connection: Connection) -> int:
            return self.reader.count(counted, marked=True, within=connection)

        if not selection.keys and status is None:
            return self.pauses.resume(scopes(selection), entry, partial(count, ranges))
        return self._in_pages(self.reader.day_ranges(ranges, status=status, marked=True), resume, entry)

    def _in_pages(
        self,
        ranges: Sequence[ExpectedRange],
        change: Callable[[Sequence[ExpectedRange], bool], int | None],
        entry: AuditEntry,
    ) -> int | None:
        """Change exactly these partitions, in transactions that hold up other writers for a moment only. More than one
        page is more than one transaction: a kill leaves the pages that were changed, the line `begun` in the audit log,
        and the rest for the next call."""
        from penstock.control.ranges import count_partitions, iter_pages
        from penstock.control.requeue import MOVED

        total = count_partitions(ranges)
        if total <= MOVED:
            return change(ranges, True) if total else None
        with self.audited(entry, total) as act:
            for page in iter_pages(ranges, MOVED):
                act.affected += change(page, False) or 0
                reach("marks.page")
        return act.affected

    def demote(self, key: PartitionKey, reason: str, entry: AuditEntry, *, rehearsal: bool = False) -> bool:
        """Withdraw the trusted run of a partition; False if it was withdrawn before."""
        from penstock.state.authority import AuthorityStore

        refuse_blank(reason)
        self.ranges(Selection(keys=(key,)))
        with self._refusals_noted(entry, rehearsal):
            return AuthorityStore(self.database, self._clock, rehearsal).demote(key, reason, entry)

    def rollback(
        self, key: PartitionKey, to: RunId, entry: AuditEntry, *, reason: str | None = None, rehearsal: bool = False
    ) -> bool:
        """Trust an earlier accepted run again; False if it is the trusted one."""
        from penstock.control.approval import refuse_without_raw
        from penstock.raw.reader import RawReader
        from penstock.state.authority import AuthorityStore

        refuse_blank(reason)
        with self._refusals_noted(entry, rehearsal):
            attempt = self._attempt(key, to)
            if attempt.was_vouched_for:
                refuse_without_raw(attempt, RawReader(self.lake))
            return AuthorityStore(self.database, self._clock, rehearsal).rollback(key, to, entry, reason)

    def approve(
        self, key: PartitionKey, run_id: RunId, reason: str, entry: AuditEntry, *, rehearsal: bool = False
    ) -> bool:
        """Trust a run that only guards (shrink, compare) held back; False if it is the trusted one."""
        from penstock.contract.contract import Contract
        from penstock.control.approval import refuse_other_complaints, refuse_without_raw
        from penstock.raw.reader import RawReader
        from penstock.state.authority import AuthorityStore

        refuse_blank(reason)
        with self._refusals_noted(entry, rehearsal):
            attempt = self._attempt(key, run_id)
            body = self.reader.contract(attempt.contract_fingerprint)
            state = self.reader.state(key)
            trusted = state is not None and (state.status, state.current_run_id) == (PartitionStatus.SUCCESS, run_id)
            if attempt.outcome is Outcome.FAILED and not trusted and body is not None:
                refuse_other_complaints(attempt, Contract.from_body(body))
                refuse_without_raw(attempt, RawReader(self.lake))
            return AuthorityStore(self.database, self._clock, rehearsal).approve(key, run_id, reason, entry)

    def raw_lines_of(self, key: PartitionKey, run_id: RunId, actor: str | None = None) -> Iterator[bytes]:
        """The payload of a named run, line by line. A run that is not the trusted one is for operators: the audit log
        says who reads it before the first line is read, and whoever may not write there is refused."""
        found, trusted = self.raw_runs(key)
        if run_id == trusted:
            return self._lines(key, run_id, found)
        chosen = {**Selection(keys=(key,)).as_dict(), "run_id": run_id}
        entry = AuditEntry(actor or os_user(), AuditedAct.RAW_READ, chosen, {})
        with self._refusals_noted(entry, False):
            lines = self._lines(key, run_id, found)
        try:
            self.note(entry, 1, "done")
        except TransientError:
            raise
        except PenstockError as error:
            raise ActRefused(
                f"run {run_id} of {key} is not the trusted one: only operators, who may write to the audit log, read it"
                f" ({error})"
            ) from error
        return lines

    @contextmanager
    def _refusals_noted(self, entry: AuditEntry, rehearsal: bool) -> Iterator[None]:
        """What was asked for and refused is in the audit log, too."""
        try:
            yield
        except ActRefused as refusal:
            if not rehearsal:
                ControlStore(self.database, self._clock).note(entry, 0, f"refused: {refusal}")
            raise

    def _attempt(self, key: PartitionKey, run_id: RunId) -> Attempt:
        self.ranges(Selection(keys=(key,)))
        attempts = self.reader.attempts(key)
        for attempt in attempts:
            if attempt.run_id == run_id:
                return attempt
        known = ", ".join(attempt.run_id for attempt in attempts) or "none"
        raise ActRefused(f"{key} has no attempt in run {run_id} (runs: {known})")

    def recheck(
        self, selection: Selection, *, watcher: Watcher, actor: str | None = None, spark: SparkSession | None = None
    ) -> Rechecked:
        """Examine the trusted runs of success partitions against today's contract; what fails is demoted."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.recheck import recheck
        from penstock.pipeline.session import start_session

        self.require_own_lake()
        trusted = self.to_recheck(selection)
        session = spark or start_session(self.settings.spark)
        broken: dict[str, str] = {}
        if any(attempt.partition.source == MODELS for attempt, _ in trusted):
            broken = self._learn_models(session)
        unjudged = {a.partition: broken[a.partition.query_name] for a, _ in trusted if a.partition.query_name in broken}
        trusted = [(attempt, size) for attempt, size in trusted if attempt.partition not in unjudged]
        validator = ValidatorStore(self.database, self._clock)
        entry = AuditEntry(actor or os_user(), AuditedAct.VALIDATE, selection.as_dict(), {})

        def withdraw(wanting: Sequence[FailedRecheck]) -> Sequence[PartitionKey]:
            return validator.withdraw(wanting, entry)

        with self.audited(entry) as act:
            found = recheck(session, self.settings.lake, self.contracts, trusted, withdraw, watcher, self._referenced)
            act.affected = len(found.demoted)
        found.unreadable.update(unjudged)
        if found.demoted:
            with Heartbeat(WorkerStore(self.database, self._clock)) as heart:
                self._publish(session, heart.token, new_run_id(), None)
        return found

    def _learn_models(self, spark: SparkSession) -> dict[str, str]:
        """Ask Spark for the columns that models make by their definitions of today. Returns, by name, why a model
        cannot be made: it is broken, or depends on one that is. The others are not affected."""
        from penstock.control.plan import refuse_changed_fields
        from penstock.flow.model_contracts import with_fields
        from penstock.pipeline.validate import check_expressions
        from penstock.warehouse.heads import table_schemas

        def refuse(contract: Contract) -> None:
            refuse_changed_fields(self.reader, {contract.query_name: contract})
            check_expressions(spark, contract)

        assets = [(contract.source, contract.query_name) for contract in self.contracts.values()]
        tables = table_schemas(self.versions, self.database, assets)
        self.contracts, broken = with_fields(
            spark, self.settings.models, self.contracts, tables, self.unreadable_models, refuse
        )
        return broken

    def unfinished_runs(self) -> list[Unfinished]:
        """Killed runs with `--reprocess` that have partitions left, which no later run takes up by itself."""
        from penstock.control.unfinished import unfinished_runs

        return unfinished_runs(self.reader, self.ledger)

    def unfinished_messages(self) -> list[str]:
        """The same in words; none for a database role that may not read runs."""
        try:
            return [run.message for run in self.unfinished_runs()]
        except PenstockError:
            return []

    def to_recheck(self, selection: Selection) -> list[tuple[AttemptKey, int]]:
        """The trusted runs that today's contract can judge: those of its schema version, with their sizes."""
        versions = {name: contract.schema_version for name, contract in self.contracts.items()}
        ranges = self.ranges(selection)  # refuses unknown names
        if selection.status not in (None, PartitionStatus.SUCCESS):
            return []
        found = self.reader.trusted(ranges)
        return [(a, size) for a, version, size in found if versions[a.partition.query_name] == version]

    def cancel_run(self, run_id: RunId, entry: AuditEntry, *, rehearsal: bool = False) -> bool:
        """Ask for a run to stop. If nobody works on it any more, it is closed at once; one that was killed and has
        partitions left is no longer reported. False if it is over: nothing was cancelled then. A rehearsal only says
        whether there is something to cancel."""
        found = self.reader.run(run_id)
        if found is None:
            raise UsageError(f"there is no run {run_id}: `penstock runs list` shows them")
        from penstock.control.rescue import end_cancelled

        control = ControlStore(self.database, self._clock)
        killed = any(run.run_id == run_id for run in self.unfinished_runs())
        if rehearsal:
            return killed or found.finished_at is None
        if not control.request_cancel(run_id, entry, even_if_over=killed):
            return False
        end_cancelled(WorkerStore(self.database, self._clock), control, run_id)
        return True

    def customer_changes(self, source: str | None, levels: int, statuses: Sequence[str]) -> tuple[str, CustomerPlan]:
        """The source that was asked (the only one that lists accounts, if none is named), and what a sync would
        write."""
        from penstock.control.customers import plan_customers
        from penstock.source.protocol import Lister, RunContext
        from penstock.source.registry import lists_accounts, make_source

        able = [name for name, found in self.settings.sources.items() if lists_accounts(found)]
        if source is None and len(able) != 1:
            raise UsageError(f"name the --source whose accounts are meant (sources that list them: {_listed(able)})")
        name = source or able[0]
        if name not in able:
            raise UsageError(f"{name!r} does not list accounts (sources that do: {_listed(able)})")
        lister = make_source(self.settings.sources[name], RunContext(new_run_id()))
        assert isinstance(lister, Lister)
        found = lister.accounts(levels, statuses)
        return name, plan_customers(self.settings, name, found, self.now())

    def sync_customers(self, plan: CustomerPlan, entry: AuditEntry) -> None:
        """Write the list of customers anew. The audit log knows of it before the file changes, and when it has."""
        from penstock.control.customers import write_customers

        interrupts.begin_work()
        self.note(entry, len(plan.changes), "begun")
        write_customers(plan)
        self.note(entry, len(plan.changes), "done")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

"""Reads of raw partitions, as the source delivered them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.app.context import Context, audit_entry
from penstock.control.select import Selection
from penstock.errors import ActRefused, PenstockError, TransientError
from penstock.lifecycle import PartitionStatus
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state.audited import AuditedAct

if TYPE_CHECKING:
    from penstock.raw.reader import RawRun


class RawService:
    """Lists the raw runs of a partition and reads their payloads. Audits reads of a run without authority."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def runs(self, key: PartitionKey) -> tuple[list[RawRun], RunId | None]:
        """Every run of a partition in the raw sink, and the authoritative run (None without one).

        >>> ws.raw.runs(key)
        """
        from penstock.raw.reader import RawReader

        self._context.ranges(Selection(keys=(key,)))  # refuses unknown names
        state = self._context.state.state(key)
        trusted = state.current_run_id if state and state.status is PartitionStatus.SUCCESS else None
        return RawReader(self._context.lake).runs(key), trusted

    def lines(self, key: PartitionKey) -> Iterator[bytes]:
        """The payload of the authoritative run, line by line. Raises ActRefused without one.

        >>> next(ws.raw.lines(key))
        """
        found, trusted = self.runs(key)
        if trusted is None:
            raise ActRefused(f"{key} has no trusted run, so there is nothing to read; operators may name a --run")
        return self._read_lines(key, trusted, found)

    def lines_of(self, key: PartitionKey, run_id: RunId, actor: str | None = None) -> Iterator[bytes]:
        """The payload of a named run, line by line. Only operators read a run that is not the authority: the audit log
        records the actor before the first line is read, and an actor without write access to it is refused.

        >>> next(ws.raw.lines_of(key, ws.raw.runs(key)[0][0].attempt.run_id, "kim"))
        """
        found, trusted = self.runs(key)
        if run_id == trusted:
            return self._read_lines(key, run_id, found)
        chosen = {**Selection(keys=(key,)).as_dict(), "run_id": run_id}
        entry = audit_entry(actor, AuditedAct.RAW_READ, chosen)
        with self._context.refusals_audited(entry):
            lines = self._read_lines(key, run_id, found)
        try:
            self._context.note(entry, 1, "done")
        except TransientError:
            raise
        except PenstockError as error:
            raise ActRefused(
                f"run {run_id} of {key} is not the trusted one: only operators, who may write to the audit log, read it"
                f" ({error})"
            ) from error
        return lines

    def _read_lines(self, key: PartitionKey, wanted: RunId, found: Sequence[RawRun]) -> Iterator[bytes]:
        from penstock.pipeline.payloads import lines_of
        from penstock.raw.reader import RawReader

        if wanted not in {run.attempt.run_id for run in found}:
            known = ", ".join(run.attempt.run_id for run in found) or "none"
            raise ActRefused(f"{key} has no run {wanted} in the raw sink (runs: {known})")
        raw = RawReader(self._context.lake)
        seal = raw.seal(AttemptKey(key, wanted))
        if seal is None:
            raise ActRefused(f"run {wanted} of {key} was never sealed: its files are incomplete")
        return lines_of(raw, seal)

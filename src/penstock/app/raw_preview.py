"""A part of a raw payload as it was received, and the comparison of two payloads, both with limits for memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore

from penstock.app.context import Context
from penstock.app.raw_runs import RawService
from penstock.app.run_comparison import Comparison, compare_lines
from penstock.config.checks import Unique
from penstock.contract.contract import Contract
from penstock.errors import ActRefused, RawError, TransientError
from penstock.partition import PartitionKey, RunId
from penstock.state.records import Attempt

PREVIEW_LINES = 100
PREVIEW_BYTES = 256 * 1024
LONGEST_LINE = 4000  # characters of a line that are shown
SCANNED_BYTES = 64 * 1024 * 1024  # that are read to reach a line
COMPARED_BYTES = 2 * 1024 * 1024  # of one payload
COMPARED_ROWS = 20_000  # a comparison keeps the process busy for a second or two
LISTED_ROWS = 200  # differences

_MIB = 1024 * 1024
_comparisons = BoundedSemaphore(2)  # at the same time, to bound the memory of the process


@dataclass(frozen=True, slots=True)
class RawPreview:
    """Some consecutive lines of a payload."""

    first: int  # number of the first line
    lines: Sequence[str]
    is_cut: bool  # whether lines follow
    is_short: bool  # whether a line was too long to be shown as a whole


def preview_lines(lines: Iterator[bytes], first: int = 1) -> RawPreview:
    """The lines of a payload from the line `first` on, at most `PREVIEW_LINES` and about `PREVIEW_BYTES`. Raises
    ActRefused if the line is too far from the beginning."""
    shown: list[str] = []
    skipped = held = 0
    is_short = False
    for number, line in enumerate(lines, start=1):
        if number < first:
            skipped += len(line)
            if skipped > SCANNED_BYTES:
                raise ActRefused(f"line {first:,} is not within the first {SCANNED_BYTES // _MIB} MiB of the payload")
            continue
        if len(shown) >= PREVIEW_LINES or held >= PREVIEW_BYTES:
            return RawPreview(first, shown, True, is_short)
        text = line[: 4 * LONGEST_LINE].decode("utf-8", "backslashreplace")
        is_short = is_short or len(text) > LONGEST_LINE or len(line) > 4 * LONGEST_LINE
        shown.append(text[:LONGEST_LINE])
        held += min(len(line), 4 * LONGEST_LINE)
    return RawPreview(first, shown, False, is_short)


def compare_runs(
    context: Context, raw: RawService, key: PartitionKey, left: Attempt, right: Attempt, actor: str
) -> Comparison:
    """The differences between the rows of two runs. The audit log records the actor for each run that is not trusted.
    Raises ActRefused if a payload is missing, damaged or too large, and TransientError if other comparisons are being
    made."""
    if not _comparisons.acquire(blocking=False):
        raise TransientError("other comparisons are being made: try again")
    try:
        old, new = (_limited(raw, key, attempt.run_id, actor) for attempt in (left, right))
        return compare_lines(old, new, key_fields(context, left, right), LISTED_ROWS)
    except RawError as error:
        raise ActRefused(str(error)) from error
    finally:
        _comparisons.release()


def key_fields(context: Context, left: Attempt, right: Attempt) -> tuple[str, ...]:
    """The fields that identify a row under both contracts: those of a `unique` check that both have. Empty without
    one."""
    bodies = [context.state.contract(attempt.contract_fingerprint) for attempt in (right, left)]
    newer, older = (() if body is None else _unique_fields(Contract.from_body(body)) for body in bodies)
    return next((fields for fields in newer if fields in older), ())


def _unique_fields(contract: Contract) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(check.fields) for check in contract.checks if isinstance(check, Unique))


def _limited(raw: RawService, key: PartitionKey, run_id: RunId, actor: str) -> list[bytes]:
    """All lines of a run. Raises ActRefused if they are too many for the memory of a server."""
    size = f"{COMPARED_ROWS:,} rows or {COMPARED_BYTES // _MIB} MiB"
    refused = ActRefused(
        f"run {run_id} of {key} has more than {size}: too much to compare here;"
        f" `penstock raw read {key} --run {run_id}` prints them"
    )
    found, _ = raw.runs(key)
    for run in found:
        if run.attempt.run_id == run_id and getattr(run.seal, "payload_bytes", 0) > COMPARED_BYTES:
            raise refused
    held = 0
    lines: list[bytes] = []
    for line in raw.lines_of(key, run_id, actor):
        held += len(line) + 1
        if held > COMPARED_BYTES or len(lines) >= COMPARED_ROWS:  # rows of a model are compressed
            raise refused
        lines.append(line)
    return lines

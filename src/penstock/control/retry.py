"""The retry policy as pure functions: when a failed partition is attempted again, and when it becomes terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.config.assets import Retry
from penstock.errors import ErrorClass
from penstock.lifecycle import PartitionStatus
from penstock.state.records import PartitionControl, PartitionView


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed attempts of a partition in a row: their number, the last one, and when the day became due."""

    count: int
    due_at: datetime
    last_at: datetime
    error_class: ErrorClass


@dataclass(frozen=True, slots=True)
class Decision:
    """When the partition is retried automatically (None: never), and by which rule."""

    next_run_at: datetime | None
    strategy: str


def decide(policy: Retry, failures: Failures, chance: float) -> Decision:
    """Apply the policy to these failures. `chance`, between 0 and 1, is the jitter of the pause."""
    if not failures.count:
        return Decision(None, "none: an operator has cleared the failures")
    if failures.error_class not in policy.errors:
        return Decision(None, f"none: {failures.error_class} errors are not retried by themselves")
    if failures.count >= policy.max_attempts:
        return Decision(None, f"none: {failures.count} of {policy.max_attempts} attempts failed")
    step = min(failures.count, len(policy.backoff))
    at = failures.last_at + jittered(policy.backoff[step - 1], policy.jitter, chance)
    if at >= failures.due_at + policy.max_age:
        return Decision(None, f"none: due since {failures.due_at:%Y-%m-%d %H:%M}, longer than the policy retries")
    return Decision(at, f"backoff {step} of {len(policy.backoff)}")


def jittered(pause: timedelta, jitter: float, chance: float) -> timedelta:
    """The pause, longer or shorter by at most the share `jitter`."""
    return pause * (1 + jitter * (2 * chance - 1))


def terminal(policy: Retry, control: PartitionControl, expires_at: datetime | None, now: datetime) -> str | None:
    """Why a failed partition is terminal; None if it is not. `expires_at` is when its retries end because of the age of
    the day."""
    if control.terminal_at is not None:
        return f"marked by {control.terminal_by}" + (f": {control.terminal_reason}" if control.terminal_reason else "")
    return _exhausted(policy, control, expires_at, now)


def next_retry(policy: Retry, view: PartitionView, now: datetime) -> datetime | None:
    """When the partition is attempted again automatically; None if it is not. A scheduled retry lapses when the policy
    became stricter or the day too old. A pending partition stays due, so the end of a pause that its source asked for
    does not lapse. A backfill schedules its own re-fetches."""
    control, status = view.control, view.state.status
    if control.strategy in _PAUSES:
        if status is PartitionStatus.PENDING:
            return control.next_run_at
        if not control.failures and view.last_backfill_id is not None:
            return None
    return None if _exhausted(policy, control, view.expires_at, now) is not None else control.next_run_at


_PAUSES = (ErrorClass.QUOTA, ErrorClass.AUTH)


def _exhausted(policy: Retry, control: PartitionControl, expires_at: datetime | None, now: datetime) -> str | None:
    """Why the policy allows no further retry. Planning and issuing apply the same rule in SQL."""
    if control.failures >= policy.max_attempts:
        return f"{control.failures} failed attempts in a row, the policy allows {policy.max_attempts}"
    if expires_at is not None and now >= expires_at:
        due_at = expires_at - policy.max_age
        return f"due since {due_at:%Y-%m-%d %H:%M} UTC, the policy retries for {_duration(policy.max_age)}"
    return None


def _duration(span: timedelta) -> str:
    days, rest = divmod(span, timedelta(days=1))
    return f"{span}" if rest else f"{days} day" + ("" if days == 1 else "s")

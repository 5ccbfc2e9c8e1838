"""The manual acts that the audit log records. Each entry names one of them; the values are the stored names."""

from __future__ import annotations

from enum import StrEnum

from penstock.errors import UsageError


class AuditedAct(StrEnum):
    """A manual act, by the command that performs it."""

    RUN_REPROCESS = "run --reprocess"
    RUNS_RESUME = "runs resume"
    RUNS_CANCEL = "runs cancel"
    VALIDATE = "validate"
    STATE_RETRY = "state retry"
    STATE_MARK_TERMINAL = "state mark-terminal"
    STATE_CLEAR_TERMINAL = "state clear-terminal"
    STATE_PAUSE = "state pause"
    STATE_RESUME = "state resume"
    STATE_DEMOTE = "state demote"
    STATE_ROLLBACK = "state rollback"
    STATE_APPROVE = "state approve"
    BACKFILL_CREATE = "backfill create"
    BACKFILL_PAUSE = "backfill pause"
    BACKFILL_RESUME = "backfill resume"
    BACKFILL_CANCEL = "backfill cancel"
    BACKFILL_RETRY_FAILED = "backfill retry-failed"
    CLOSE_BREAKER = "control close-breaker"
    CUSTOMERS_SYNC = "customers sync"
    RAW_READ = "raw read --run"
    RAW_GC = "raw gc"
    SNAPSHOT = "snapshot"
    SNAPSHOT_DROP = "snapshot --drop"
    RECONCILE = "warehouse reconcile"
    COMPACT = "warehouse compact"
    VACUUM = "warehouse vacuum"
    LEDGER_EXPORT = "ledger export"
    RECOVER = "recover"
    TOKENS_CREATE = "tokens create"
    TOKENS_REVOKE = "tokens revoke"
    TOKENS_LOGOUT = "tokens logout"
    ORDERS_CREATE = "orders create"
    ORDERS_CANCEL = "orders cancel"


def refuse_blank(reason: str | None) -> None:
    """Raise UsageError if a reason is given but blank."""
    if reason is not None and not reason.strip():
        raise UsageError("the reason is empty: give one, for the audit log and for `penstock why`")

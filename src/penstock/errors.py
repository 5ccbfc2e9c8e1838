"""Errors are instructions: what happened, to which slice, and what to do next.

One root, two branches. A transient error may go away if the same work is done again; a terminal one will not.
Every error carries its facts as positional arguments, so that it survives pickling on its way from a Spark worker.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """How a command ends. The only list of exit codes: `--help`, the reference and the code use it."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "an error, or some partitions failed",
    ExitCode.USAGE: "wrong usage: the command line must be changed",
    ExitCode.TRY_AGAIN: "a transient error: the same command may succeed later",
    ExitCode.INTERRUPTED: "interrupted by SIGINT or SIGTERM",
}


class ErrorClass(StrEnum):
    """What kind of trouble it was; the retry policy decides by this word."""

    TRANSIENT = "transient"  # the network, a timeout, a busy server: the same request may succeed
    QUOTA = "quota"  # the source asked us to slow down; says nothing about the slice
    AUTH = "auth"  # credentials refused; every slice of the source would fail alike
    CONFIG = "config"  # our own settings are wrong; a person must change them
    DATA = "data"  # the slice itself is not what the contract says
    INTERNAL = "internal"  # a bug, or a broken promise of a part of Penstock

    @property
    def is_source_wide(self) -> bool:
        """True when the trouble is the source's, so that it must not count against one partition."""
        return self in (ErrorClass.QUOTA, ErrorClass.AUTH)


class PenstockError(Exception):
    """The root of every error that Penstock raises on purpose."""

    error_class: ClassVar[ErrorClass] = ErrorClass.INTERNAL
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    remedy: ClassVar[str] = "Read the message. If it does not say what to do, report it."

    def __str__(self) -> str:
        return " ".join(str(fact) for fact in self.args)


class TransientError(PenstockError):
    """The same work may succeed later without anybody changing anything."""

    error_class = ErrorClass.TRANSIENT
    exit_code = ExitCode.TRY_AGAIN
    remedy = "Run the command again. If it keeps failing, `penstock doctor` checks what it depends on."


class TerminalError(PenstockError):
    """The same work would fail again: something must be changed first."""

    remedy = "Change what the message names, then run the command again."


class UsageError(TerminalError):
    """The command line asked for something that cannot be meant."""

    error_class = ErrorClass.CONFIG
    exit_code = ExitCode.USAGE
    remedy = "Correct the command line: the message names the valid values."


class ConfigError(TerminalError):
    """The workspace file (or something it names) is wrong."""

    error_class = ErrorClass.CONFIG
    remedy = "Correct the workspace file at the line in the message, then run `penstock doctor`."


class DataError(TerminalError):
    """A slice does not hold what it promised."""

    error_class = ErrorClass.DATA
    remedy = "Correct the rows at the source or the contract, then `penstock state retry` and `penstock run`."


class SourceUnavailable(TransientError):
    """The source did not answer, or broke off in the middle."""

    remedy = "Nothing: the retry policy tries again. `penstock why KEY` shows when."


class QuotaExceeded(TransientError):
    """The source asks for a pause. `retry_after` is its own word for how long, in seconds."""

    error_class = ErrorClass.QUOTA
    remedy = "Nothing: no request is sent until the pause is over. Lower `rate` or `parallelism` if it repeats."

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)

    @property
    def retry_after(self) -> float | None:
        seconds: float | None = self.args[1]
        return seconds

    def __str__(self) -> str:
        after = "" if self.retry_after is None else f" (the source asks to wait {self.retry_after:g} s)"
        return f"{self.args[0]}{after}"


class AuthFailed(TerminalError):
    """The source refuses our credentials."""

    error_class = ErrorClass.AUTH
    remedy = "Renew the credentials, then `penstock control close-breaker` lets the source be asked again at once."


class VersionRefused(AuthFailed):
    """The source no longer speaks the version that we ask in: like bad credentials, this stops every request."""

    remedy = "Set `api_version` of the source to a supported version, or upgrade the client."


class RawError(DataError):
    """A raw partition is missing, unsealed or not what its seal says."""

    remedy = "Fetch the partition again: `penstock run KEY --reprocess`."


class AlreadySealed(TerminalError):
    """Somebody tried to write into a raw partition that is closed for ever."""

    remedy = "Report it: a run writes each raw partition once."


class StateConflict(TransientError):
    """Another process changed the same rows first; planning again will see the new truth."""

    remedy = "Run the command again: it plans from the new state."


class ActRefused(TerminalError):
    """An operator asked for something that the partition's history does not allow."""

    remedy = "The message names what the history allows; `penstock state history KEY` shows it."


class LeaseLost(TransientError):
    """We paused for too long: another process holds what we thought was ours."""

    remedy = "Run the command again: the next run continues. If it repeats, look for a suspended or overloaded host."


class WarehouseError(TerminalError):
    """A warehouse table is not what its head says."""

    remedy = "`penstock warehouse verify` lists the damage, `penstock recover --from database` rebuilds it."


class LakeMismatch(TerminalError):
    """The lake and the state database disagree: one is older than the other, damaged, or of another workspace."""

    error_class = ErrorClass.CONFIG
    remedy = "Run `penstock recover`: it shows which side is older, and how to rebuild the other one."


class SparkFailed(TransientError):
    """A Spark job broke as a whole (a worker or an executor died): no slice of it was judged."""

    remedy = "Run the command again. If it repeats, give Spark more memory (`spark.config`) and read its log."


class DatabaseUnavailable(TransientError):
    """The state database cannot be reached or is locked."""

    remedy = "Start the database or wait for the lock, then run the command again."

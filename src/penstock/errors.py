"""Errors are instructions: what failed, on which partition, and what to do next.

One root, two branches. The same work may succeed again after a transient error; after a terminal one it will not.
Every error carries its facts as positional arguments, so that it survives pickling on its way from a Spark worker.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the commands. The only list: `--help`, the reference and the code use it."""

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
    """The class of an error; the retry policy decides by it."""

    TRANSIENT = "transient"  # the network, a timeout, a busy server: the same request may succeed
    QUOTA = "quota"  # the source asked us to slow down; not an error of the partition
    AUTH = "auth"  # credentials refused; every partition of the source would fail
    CONFIG = "config"  # our own settings are wrong; a person must change them
    DATA = "data"  # the rows of the partition do not satisfy the contract
    INTERNAL = "internal"  # a bug, or a violated contract between parts of Penstock

    @property
    def is_source_wide(self) -> bool:
        """Whether the error concerns the whole source, so that it must not count against one partition."""
        return self in (ErrorClass.QUOTA, ErrorClass.AUTH)


class PenstockError(Exception):
    """The root of all errors that Penstock raises on purpose."""

    error_class: ClassVar[ErrorClass] = ErrorClass.INTERNAL
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    remedy: ClassVar[str] = "Read the message. If it names no remedy, report it."

    def __str__(self) -> str:
        return " ".join(str(fact) for fact in self.args)


class TransientError(PenstockError):
    """The same work may succeed later without any change."""

    error_class = ErrorClass.TRANSIENT
    exit_code = ExitCode.TRY_AGAIN
    remedy = "Run the command again. If it keeps failing, `penstock doctor` checks what it depends on."


class TerminalError(PenstockError):
    """The same work would fail again: something must be changed first."""

    remedy = "Change what the message names, then run the command again."


class UsageError(TerminalError):
    """The arguments of the command are not valid."""

    error_class = ErrorClass.CONFIG
    exit_code = ExitCode.USAGE
    remedy = "Correct the command line: the message names the valid values."


class ConfigError(TerminalError):
    """The workspace file, or a file it refers to, is not valid."""

    error_class = ErrorClass.CONFIG
    remedy = "Correct the workspace file at the line in the message, then run `penstock doctor`."


class DataError(TerminalError):
    """The rows of a partition are not valid."""

    error_class = ErrorClass.DATA
    remedy = "Correct the rows at the source or the contract, then `penstock state retry` and `penstock run`."


class SourceUnavailable(TransientError):
    """The source did not respond, or broke off a response."""

    remedy = "Nothing: the retry policy tries again. `penstock why KEY` shows when."


class QuotaExceeded(TransientError):
    """The source asks for a pause, of `retry_after` seconds if it names a time."""

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


class QuotaUsedUp(QuotaExceeded):
    """No claimed request of the hourly or daily `rate` is left. The request was not sent."""

    remedy = "Nothing: requests are sent again when the window renews. `penstock control quota` shows when."

    def __str__(self) -> str:
        return str(self.args[0])


class AuthFailed(TerminalError):
    """The source refuses our credentials."""

    error_class = ErrorClass.AUTH
    remedy = "Renew the credentials, then run `penstock control close-breaker SOURCE`: requests are sent again at once."


class VersionRefused(AuthFailed):
    """The source no longer supports the API version: like refused credentials, this fails every request."""

    remedy = "Set `api_version` of the source to a supported version, or upgrade the client."


class RawError(DataError):
    """A raw partition is missing, unsealed or does not match its seal."""

    remedy = "Fetch the partition again: `penstock run KEY --reprocess`."


class AlreadySealed(TerminalError):
    """The raw partition is sealed: it cannot be written to again."""

    remedy = "Report it: a run writes each raw partition once."


class StateConflict(TransientError):
    """Another process changed the same rows first; a new plan reads the new state."""

    remedy = "Run the command again: it plans from the new state."


class ImpossibleRow(TerminalError):
    """A row would violate a named constraint of the state database. Nothing was written."""

    remedy = "Report it with the message, which names the constraint."


class HistoryProtected(TerminalError):
    """A statement would change or delete a row that a trigger of the state database protects. Nothing was written."""

    remedy = "Do not change history by hand: use the commands of Penstock."


class ActRefused(TerminalError):
    """An operator asked for a change that the history of the partition does not allow."""

    remedy = "The message names what the history allows; `penstock state history KEY` shows it."


class PlanOutdated(ActRefused):
    """A previewed action cannot be applied: the plan expired, or its partitions changed since the preview."""

    remedy = "Preview the action again and apply the new plan."


class NotAuthenticated(TerminalError):
    """A request of the API carries no valid token and no valid session."""

    error_class = ErrorClass.AUTH
    remedy = "Send `Authorization: Bearer TOKEN` with a token of `penstock tokens create`, or log in again."


class AccessDenied(TerminalError):
    """The role of the token does not allow the request, or the request fails a check against forgery."""

    error_class = ErrorClass.AUTH
    remedy = "Use a token with the role in the message: `penstock tokens create NAME --role ROLE`."


class TooManyLogins(TransientError):
    """Too many failed logins came from the same address."""

    remedy = "Wait until the time in the message, then log in with a valid token."


class LoginUnavailable(TransientError):
    """The identity provider of the console does not respond, or not as OpenID Connect describes."""

    remedy = "Try again later, or log in with a token; `console.oidc` in the workspace file names the provider."


class LeaseLost(TransientError):
    """The lease expired during a pause: another process holds the lease now."""

    remedy = "Run the command again: the next run continues. If it repeats, look for a suspended or overloaded host."


class WarehouseError(TerminalError):
    """A warehouse table does not match its head."""

    remedy = "`penstock warehouse verify` lists the damage, `penstock recover --from database` rebuilds it."


class LakeMismatch(TerminalError):
    """The lake and the state database disagree: one is older than the other, damaged, or of another workspace."""

    error_class = ErrorClass.CONFIG
    remedy = "Run `penstock recover`: it shows which side is older, and how to rebuild the other one."


class SparkFailed(TransientError):
    """A Spark job failed as a whole (a worker or an executor died): no partition of it got a verdict."""

    remedy = "Run the command again. If it repeats, give Spark more memory (`spark.config`) and read its log."


class DatabaseUnavailable(TransientError):
    """The state database cannot be reached or is locked."""

    remedy = "Start the database or wait for the lock, then run the command again."

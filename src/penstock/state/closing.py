"""Closing issued attempts in bulk: verdict, authority and events in one transaction, each exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import KEY_COLUMNS, Columns, same_key, staged, timed
from penstock.db.locks import lock_partitions, lock_rows
from penstock.db.types import Json
from penstock.errors import PenstockError
from penstock.ledger.append import append
from penstock.ledger.events import AttemptRefused, AuthorityChanged, Event, TaskFinished
from penstock.lifecycle import Act, Outcome, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state.records import Accepted, Cancelled, ClosingResult, Refused, Rejected

Closing = Accepted | Rejected | Cancelled

_COLUMNS: Columns = {
    **KEY_COLUMNS,
    "run_id": sa.Text(),
    "worker_token": sa.Text(),
    "outcome": sa.Text(),
    "stage": sa.Text(),
    "error_class": sa.Text(),
    "error_message": sa.Text(),
    "complaints": Json(),
    "record_count": sa.BigInteger(),
    "payload_digest": sa.Text(),
    "payload_bytes": sa.BigInteger(),
    "content_digest": sa.Text(),
    "measures": Json(),
    "lost": sa.Integer(),
    "tries": sa.Integer(),
    "ruling": sa.Text(),
}

_SAME_ATTEMPT = f"{same_key('a', 'c')} AND a.run_id = c.run_id"


_RULE = f"""
UPDATE incoming_closing AS c SET ruling = COALESCE((
    SELECT CASE
        WHEN a.outcome IS NULL AND a.worker_token <> c.worker_token THEN 'the attempt belongs to another worker now'
        WHEN a.outcome IS NULL AND EXISTS (
            SELECT 1 FROM partition_attempt n WHERE {same_key("n", "a")} AND n.attempt_no > a.attempt_no
        ) THEN 'a newer attempt was issued'
        WHEN a.outcome IS NULL THEN 'apply'
        WHEN a.outcome = c.outcome AND COALESCE(a.payload_digest, '') = COALESCE(c.payload_digest, '')
            AND COALESCE(a.error_message, '') = COALESCE(c.error_message, '') THEN 'repeat'
        ELSE 'the attempt was closed before, ' || a.outcome
    END
    FROM partition_attempt a WHERE {_SAME_ATTEMPT}
), 'the attempt was never issued')
"""

_CLOSE = f"""
UPDATE partition_attempt AS a SET
    outcome = c.outcome, stage = c.stage, error_class = c.error_class, error_message = c.error_message,
    complaints = c.complaints, record_count = c.record_count, payload_digest = c.payload_digest,
    payload_bytes = c.payload_bytes, content_digest = c.content_digest, measures = c.measures,
    finished_at = :now,
    lost_count = CASE WHEN c.lost = 1 THEN a.lost_count + 1 WHEN c.outcome = 'CANCELLED' THEN a.lost_count ELSE 0 END
FROM incoming_closing c
WHERE {_SAME_ATTEMPT} AND c.ruling = 'apply' AND a.outcome IS NULL
"""

# A verdict counts once. Acceptance takes authority; rejection leaves it, and a partition that is success stays success.
_MOVE = f"""
INSERT INTO partition_state AS s (source, customer_id, query_name, logical_date, status, current_run_id, schema_version,
    record_count, updated_at, error_message, attempt_count, authority_version)
SELECT c.source, c.customer_id, c.query_name, c.logical_date,
    CASE WHEN c.outcome = 'SUCCEEDED' THEN 'success' ELSE 'failed' END,
    CASE WHEN c.outcome = 'SUCCEEDED' THEN c.run_id END,
    CASE WHEN c.outcome = 'SUCCEEDED' THEN a.schema_version END,
    CASE WHEN c.outcome = 'SUCCEEDED' THEN c.record_count END,
    :now, c.error_message, 1, CASE WHEN c.outcome = 'SUCCEEDED' THEN 1 ELSE 0 END
FROM incoming_closing c JOIN partition_attempt a ON {_SAME_ATTEMPT}
WHERE c.ruling = 'apply' AND c.outcome <> 'CANCELLED'
ORDER BY c.source, c.customer_id, c.query_name, c.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET
    status = CASE WHEN s.status = 'success' THEN 'success' ELSE excluded.status END,
    current_run_id = COALESCE(excluded.current_run_id, s.current_run_id),
    schema_version = COALESCE(excluded.schema_version, s.schema_version),
    record_count = COALESCE(excluded.record_count, s.record_count),
    updated_at = excluded.updated_at,
    error_message = CASE WHEN 'success' IN (s.status, excluded.status) THEN NULL ELSE excluded.error_message END,
    attempt_count = s.attempt_count + 1,
    authority_version = s.authority_version + excluded.authority_version
"""

_DUE = f"""
INSERT INTO publish_due (source, customer_id, query_name, logical_date, authority_version, since)
SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.authority_version, :now
FROM incoming_closing c JOIN partition_state s ON {same_key("s", "c")}
WHERE c.ruling = 'apply' AND c.outcome = 'SUCCEEDED'
ON CONFLICT (source, customer_id, query_name, logical_date)
DO UPDATE SET authority_version = excluded.authority_version, since = excluded.since
"""

# A failure waits for a decision of the retry policy; an acceptance resets the failure count.
_RETRY_DUE = f"""
INSERT INTO retry_due (source, customer_id, query_name, logical_date, attempt_no)
SELECT c.source, c.customer_id, c.query_name, c.logical_date, a.attempt_no
FROM incoming_closing c JOIN partition_attempt a ON {_SAME_ATTEMPT}
WHERE c.ruling = 'apply' AND c.outcome = 'FAILED'
ORDER BY c.source, c.customer_id, c.query_name, c.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET attempt_no = excluded.attempt_no
"""
_DELETE_RETRY_DUE = f"""
DELETE FROM retry_due AS d WHERE EXISTS (SELECT 1 FROM incoming_closing c
    WHERE {same_key("d", "c")} AND c.ruling = 'apply' AND c.outcome = 'SUCCEEDED')
"""
_RESET_FAILURES = f"""
UPDATE partition_control AS k SET failures = 0, failing_since = NULL, next_run_at = NULL, strategy = NULL
FROM incoming_closing c
WHERE {same_key("k", "c")} AND c.ruling = 'apply' AND c.outcome = 'SUCCEEDED'
AND (k.strategy IS NOT NULL OR k.failures > 0)
"""
# Until the retry policy decides about the new failure, the old `next_run_at` is void.
_CLEAR_NEXT_RUN = f"""
UPDATE partition_control AS k SET next_run_at = NULL, strategy = NULL
FROM incoming_closing c
WHERE {same_key("k", "c")} AND c.ruling = 'apply' AND c.outcome = 'FAILED' AND k.next_run_at IS NOT NULL
"""

OVERTAKEN = "an input run is no longer the trusted one: the partition is derived again"

# A derived partition is valid only for its input runs, so they must be the trusted ones in this transaction.
_SAME_INPUT = " AND ".join(f"s.{name} = i.input_{name}" for name in KEY_COLUMNS)
_ITS_INPUTS = f"{same_key('i', 'c')} AND i.run_id = c.run_id"
_CLOSED_INPUTS = f"SELECT 1 FROM attempt_input i JOIN incoming_closing c ON {_ITS_INPUTS} WHERE {_SAME_INPUT}"
_OVERTAKEN = f"""
UPDATE incoming_closing AS c SET outcome = 'CANCELLED', error_class = 'transient', record_count = NULL,
    payload_digest = NULL, payload_bytes = NULL, content_digest = NULL, complaints = NULL, measures = NULL,
    error_message = '{OVERTAKEN}'
WHERE c.outcome = 'SUCCEEDED'
AND EXISTS (SELECT 1 FROM partition_attempt a WHERE {_SAME_ATTEMPT} AND a.outcome IS NULL)
AND EXISTS (SELECT 1 FROM attempt_input i WHERE {_ITS_INPUTS}
    AND NOT EXISTS (SELECT 1 FROM partition_state s
        WHERE {_SAME_INPUT} AND s.status = 'success' AND s.current_run_id = i.input_run_id))
"""

_RULINGS = f"""
SELECT c.source, c.customer_id, c.query_name, c.logical_date, c.run_id, c.outcome, c.stage, c.error_class,
    c.record_count, c.content_digest, c.tries, c.ruling, a.attempt_no, a.contract_fingerprint, s.authority_version,
    {{consumed}} AS consumed
FROM incoming_closing c
LEFT JOIN partition_attempt a ON {_SAME_ATTEMPT}
LEFT JOIN partition_state s ON {same_key("s", "c")}
"""
_COUNT_INPUTS = f"(SELECT COUNT(*) FROM attempt_input i WHERE {_ITS_INPUTS})"


def close(connection: Connection, closings: Sequence[Closing], actor: str, now: datetime) -> ClosingResult:
    """Close each attempt that is open and held by the given worker. Attempts closed before are reported as repeated or
    refused, with the reason."""
    rows = [_row(closing) for closing in _deduplicated(closings)]
    moment = {"now": now}
    derived = bool(connection.scalar(sa.text("SELECT EXISTS (SELECT 1 FROM attempt_input)")))
    with staged(connection, "incoming_closing", _COLUMNS, rows):
        attempts = f"partition_attempt a JOIN incoming_closing c ON {_SAME_ATTEMPT}"
        lock_rows(connection, attempts, "a", order=(*KEY_COLUMNS, "run_id"))
        lock_partitions(connection, "partition_state", "incoming_closing")
        if derived:
            lock_rows(connection, f"partition_state s WHERE EXISTS ({_CLOSED_INPUTS})", "s", share=True)
            connection.execute(sa.text(_OVERTAKEN))
        connection.execute(sa.text(_RULE))
        connection.execute(timed(_CLOSE), moment)
        connection.execute(timed(_MOVE), moment)
        connection.execute(timed(_DUE), moment)
        for statement in (_RETRY_DUE, _DELETE_RETRY_DUE, _RESET_FAILURES, _CLEAR_NEXT_RUN):
            connection.execute(sa.text(statement))
        rulings = _RULINGS.format(consumed=_COUNT_INPUTS if derived else "0")
        closed = [_closed(*row) for row in connection.execute(sa.text(rulings).columns(logical_date=sa.Date()))]
    append(connection, [event for one in closed for event in _events(one)], actor, now)
    wanted = {closing.attempt for closing in closings if isinstance(closing, Accepted)}
    return ClosingResult(
        applied=[one.attempt for one in closed if one.ruling == "apply"],
        overtaken=tuple(
            one.attempt
            for one in closed
            if one.ruling == "apply" and one.outcome == Outcome.CANCELLED and one.attempt in wanted
        ),
        repeated=[one.attempt for one in closed if one.ruling == "repeat"],
        refused=[Refused(one.attempt, one.ruling) for one in closed if one.ruling not in ("apply", "repeat")],
    )


def _deduplicated(closings: Sequence[Closing]) -> Iterable[Closing]:
    """Drop repetitions inside one batch. Raises PenstockError if two closings of one attempt differ."""
    seen: dict[AttemptKey, Closing] = {}
    for closing in closings:
        if seen.setdefault(closing.attempt, closing) != closing:
            raise PenstockError(f"two different verdicts on {closing.attempt} in one batch")
    return seen.values()


def _row(closing: Closing) -> tuple[Any, ...]:
    key = closing.attempt.partition
    attempt = (key.source, key.customer_id, key.query_name, key.logical_date, closing.attempt.run_id)
    match closing:
        case Accepted():
            return (
                *attempt, closing.worker_token, Outcome.SUCCEEDED, Stage.VALIDATE, None, None,
                [_storable(warning) for warning in closing.warnings] or None, closing.record_count,
                closing.payload_digest, closing.payload_bytes, closing.content_digest, _measures(closing.measures), 0,
                closing.tries, None,
            )  # fmt: skip
        case Rejected():
            return (
                *attempt, closing.worker_token, Outcome.FAILED, closing.stage, closing.error_class,
                _storable(closing.error_message), [_storable(complaint) for complaint in closing.complaints] or None,
                closing.record_count, closing.payload_digest, closing.payload_bytes, closing.content_digest,
                _measures(closing.measures), 0, closing.tries, None,
            )  # fmt: skip
        case Cancelled():
            return (
                *attempt, closing.worker_token, Outcome.CANCELLED, closing.stage, closing.error_class,
                _storable(closing.error_message), None, None, None, None, None, None, int(closing.lost),
                closing.tries, None,
            )  # fmt: skip


def _measures(found: Mapping[str, float | None] | None) -> dict[str, float | None] | None:
    return dict(found) if found else None


def _storable(value: Any) -> Any:
    """Escape text that a database cannot store: examples come from broken payloads, and PostgreSQL rejects NUL."""
    if isinstance(value, str):
        return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return {name: _storable(item) for name, item in value.items()} if isinstance(value, dict) else value


class _Closed(NamedTuple):
    """The result of one closing, as `_RULINGS` returns it."""

    attempt: AttemptKey
    outcome: str
    stage: str
    error_class: str | None
    record_count: int | None
    content_digest: str | None
    tries: int
    ruling: str
    attempt_no: int
    contract_fingerprint: str
    authority_version: int
    consumed: int


def _closed(source: str, customer_id: str, query_name: str, day: date, run_id: str, *facts: Any) -> _Closed:
    return _Closed(AttemptKey(PartitionKey(source, customer_id, query_name, day), RunId(run_id)), *facts)


def _events(row: _Closed) -> Iterable[Event]:
    if row.ruling == "repeat":
        return
    attempt = row.attempt
    if row.ruling != "apply":
        yield AttemptRefused(attempt.run_id, attempt.partition, row.outcome, row.ruling)
        return
    yield TaskFinished(
        attempt.run_id,
        attempt.partition,
        row.attempt_no,
        row.stage,
        row.outcome,
        row.error_class,
        row.contract_fingerprint,
        row.record_count,
        row.tries,
        row.consumed if row.outcome == Outcome.SUCCEEDED else 0,
    )
    if row.outcome == Outcome.SUCCEEDED:
        yield AuthorityChanged(
            attempt.run_id,
            attempt.partition,
            row.authority_version,
            Act.ACCEPT,
            row.contract_fingerprint,
            row.content_digest,
        )

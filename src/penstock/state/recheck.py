"""Demotion by re-check: withdraws trusted runs that no longer satisfy their contract, in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import KEY_COLUMNS, key_values, same_key, staged, timed
from penstock.db.locks import lock_partitions
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged
from penstock.lifecycle import Act
from penstock.partition import AttemptKey, PartitionKey, RunId


@dataclass(frozen=True, slots=True)
class FailedRecheck:
    """A trusted run that was checked again and does not satisfy its contract."""

    attempt: AttemptKey
    error_message: str


# Only runs that are still trusted: if authority moved during the re-check, there is nothing to withdraw.
_STILL_TRUSTED = f"{same_key('s', 'i')} AND s.status = 'success' AND s.current_run_id = i.run_id"

_RULE = f"""
UPDATE incoming_recheck AS i SET applies = 1 WHERE EXISTS (SELECT 1 FROM partition_state s WHERE {_STILL_TRUSTED})
"""
_DEMOTE = f"""
UPDATE partition_state AS s SET status = 'failed', error_message = i.error_message, updated_at = :now,
    attempt_count = s.attempt_count + 1, authority_version = s.authority_version + 1
FROM incoming_recheck i WHERE {_STILL_TRUSTED}
"""
_MARK = f"""
UPDATE partition_attempt AS a SET demoted_at = :now
FROM incoming_recheck i WHERE {same_key("a", "i")} AND a.run_id = i.run_id AND i.applies = 1
AND a.demoted_at IS NULL
"""
_DUE = f"""
INSERT INTO publish_due (source, customer_id, query_name, logical_date, authority_version, since)
SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.authority_version, :now
FROM incoming_recheck i JOIN partition_state s ON {same_key("s", "i")} WHERE i.applies = 1
ON CONFLICT (source, customer_id, query_name, logical_date)
DO UPDATE SET authority_version = excluded.authority_version, since = excluded.since
"""
_DEMOTED = f"""
SELECT s.source, s.customer_id, s.query_name, s.logical_date, i.run_id, s.authority_version
FROM incoming_recheck i JOIN partition_state s ON {same_key("s", "i")} WHERE i.applies = 1
"""


def demote_rejected(connection: Connection, found: Sequence[FailedRecheck], now: datetime) -> list[PartitionKey]:
    """Demote these runs where they are still trusted, and return the demoted partitions. Each counts as one attempt."""
    columns = {**KEY_COLUMNS, "run_id": sa.Text(), "error_message": sa.Text(), "applies": sa.Integer()}
    rows = [(*key_values(f.attempt.partition), f.attempt.run_id, f.error_message, 0) for f in found]
    with staged(connection, "incoming_recheck", columns, rows):
        lock_partitions(connection, "partition_state", "incoming_recheck")
        connection.execute(sa.text(_RULE))
        connection.execute(timed(_DEMOTE), {"now": now})
        connection.execute(timed(_MARK), {"now": now})
        connection.execute(timed(_DUE), {"now": now})
        demoted = connection.execute(sa.text(_DEMOTED).columns(logical_date=sa.Date())).all()
    events = [
        AuthorityChanged(
            RunId(row.run_id),
            PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date),
            row.authority_version,
            Act.RECHECK,
        )
        for row in demoted
    ]
    append(connection, events, "validator", now)
    return [event.partition for event in events]

"""Operators' marks on partitions: terminal, terminal cleared, paused. Each act has an audit entry.

Marks are stored beside the state, not in it: a terminal partition is still `failed`, and a paused one keeps its
status. Pauses by filters are selectors (`pauses.py`), whose `resume` also clears pauses of single partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db.bulk import KEY_COLUMNS, key_values, same_key, staged, timed
from penstock.db.engine import Database
from penstock.db.locks import lock_partitions
from penstock.partition import PartitionKey
from penstock.state.audited import refuse_blank
from penstock.state.control import DELETE_RETRY_DUE, AuditEntry, record_audit

_ROWS = """
INSERT INTO partition_control (source, customer_id, query_name, logical_date)
SELECT k.source, k.customer_id, k.query_name, k.logical_date FROM incoming_key k WHERE true
ORDER BY k.source, k.customer_id, k.query_name, k.logical_date
ON CONFLICT DO NOTHING
"""

_MARK_TERMINAL = f"""
UPDATE partition_control AS c SET terminal_at = :now, terminal_by = :actor, terminal_reason = :reason,
    next_run_at = NULL, strategy = NULL
FROM incoming_key k WHERE {same_key("c", "k")} AND c.terminal_at IS NULL
AND EXISTS (SELECT 1 FROM partition_state s WHERE {same_key("s", "k")} AND s.status = 'failed')
"""

# Clearing resets the failure count, whichever way the partition became terminal.
_CLEAR_TERMINAL = f"""
UPDATE partition_control AS c SET terminal_at = NULL, terminal_by = NULL, terminal_reason = NULL, failures = 0,
    failing_since = NULL, next_run_at = NULL, strategy = NULL,
    cleared_attempt_no = COALESCE((SELECT MAX(a.attempt_no) FROM partition_attempt a WHERE {same_key("a", "c")}), 0)
FROM incoming_key k WHERE {same_key("c", "k")} AND (c.terminal_at IS NOT NULL OR c.failures > 0)
"""

_PAUSE = f"""
UPDATE partition_control AS c SET paused_at = :now, paused_by = :actor, paused_reason = :reason
FROM incoming_key k WHERE {same_key("c", "k")} AND c.paused_at IS NULL
"""


class MarkStore:
    """Sets marks and clears terminal ones. Repeating a call changes nothing; each call returns how many changed."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def mark_terminal(
        self, keys: Sequence[PartitionKey], reason: str | None, entry: AuditEntry, *, audited: bool = True
    ) -> int:
        """Mark failed partitions as terminal; partitions of another status among `keys` are not changed. `audited` as
        in `pause`."""
        refuse_blank(reason)
        return self._act(_MARK_TERMINAL, keys, reason, entry, creates=True, audited=audited)

    def clear_terminal(self, keys: Sequence[PartitionKey], entry: AuditEntry, *, audited: bool = True) -> int:
        """Remove the terminal marks of these partitions, and reset their failures. `audited` as in `pause`."""
        return self._act(_CLEAR_TERMINAL, keys, None, entry, forgives=True, audited=audited)

    def pause(
        self, keys: Sequence[PartitionKey], reason: str | None, entry: AuditEntry, *, audited: bool = True
    ) -> int:
        """Pause these partitions: no attempt is issued until they are resumed. Without `audited`, the call is one page
        of an act whose audit entry exists."""
        refuse_blank(reason)
        return self._act(_PAUSE, keys, reason, entry, creates=True, audited=audited)

    def _act(
        self,
        statement: str,
        keys: Sequence[PartitionKey],
        reason: str | None,
        entry: AuditEntry,
        *,
        creates: bool = False,
        forgives: bool = False,
        audited: bool = True,
    ) -> int:
        now = self._clock()

        def work(connection: Connection) -> int:
            with staged(connection, "incoming_key", KEY_COLUMNS, [key_values(key) for key in keys]):
                if creates:
                    connection.execute(sa.text(_ROWS))
                lock_partitions(connection, "partition_control", "incoming_key")
                parameters = {"now": now, "actor": entry.actor, "reason": reason}
                wanted = {name: value for name, value in parameters.items() if f":{name}" in statement}
                text = timed(statement) if "now" in wanted else sa.text(statement)
                changed = connection.execute(text, wanted).rowcount
                if forgives:
                    connection.execute(sa.text(DELETE_RETRY_DUE))
            if audited:
                record_audit(connection, entry, changed, "done", now)
            return changed

        return self._database.transact(work)

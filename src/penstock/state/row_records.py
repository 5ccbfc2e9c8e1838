"""Converts database rows to the records of `penstock.state.records`."""

from __future__ import annotations

from typing import Any

from penstock.errors import ErrorClass
from penstock.lifecycle import Outcome, PartitionStatus, Stage
from penstock.partition import PartitionKey, RunId
from penstock.state.records import Attempt, PartitionControl, PartitionState, PartitionView
from penstock.state.view_sql import CONTROL_COLUMNS


def key_of(row: Any) -> PartitionKey:
    return PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date)


def state_of(row: Any) -> PartitionState:
    return PartitionState(
        key_of(row),
        PartitionStatus(row.status),
        row.current_run_id,
        row.schema_version,
        row.record_count,
        row.updated_at,
        row.error_message,
        row.attempt_count,
        row.authority_version,
    )


def view_of(row: Any) -> PartitionView:
    return PartitionView(
        state=state_of(row),
        explicit=row.explicit,
        last_attempt_no=row.last_attempt_no or 0,
        last_attempt_run_id=row.last_attempt_run_id,
        last_attempt_outcome=_optional(Outcome, row.last_attempt_outcome),
        last_attempt_error_class=_optional(ErrorClass, row.last_attempt_error_class),
        last_attempt_error=row.last_attempt_error,
        last_attempt_at=row.last_attempt_at,
        last_backfill_id=row.last_backfill_id,
        open_run_id=row.open_run_id,
        control=PartitionControl(row.failures or 0, *(getattr(row, name) for name in CONTROL_COLUMNS[1:])),
        expires_at=row.expires_at,
    )


def attempt_of(row: Any) -> Attempt:
    return Attempt(
        key=key_of(row),
        run_id=RunId(row.run_id),
        attempt_no=row.attempt_no,
        reason=row.reason,
        contract_fingerprint=row.contract_fingerprint,
        schema_version=row.schema_version,
        worker_token=row.worker_token,
        lost_count=row.lost_count,
        issued_at=row.issued_at,
        stage=_optional(Stage, row.stage),
        outcome=_optional(Outcome, row.outcome),
        error_class=_optional(ErrorClass, row.error_class),
        error_message=row.error_message,
        complaints=row.complaints,
        record_count=row.record_count,
        payload_digest=row.payload_digest,
        payload_bytes=row.payload_bytes,
        content_digest=row.content_digest,
        finished_at=row.finished_at,
        raw_deleted_at=row.raw_deleted_at,
        approved_at=row.approved_at,
        demoted_at=row.demoted_at,
        measures=row.measures,
    )


def _optional(kind: Any, value: str | None) -> Any:
    return None if value is None else kind(value)

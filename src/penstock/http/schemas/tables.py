"""Models of tables, sources, the audit log and events."""

from __future__ import annotations

from datetime import date, datetime

from penstock.http.schemas.base import Facts, Model


class TableField(Model):
    """A column of a table."""

    name: str
    type: str


class TableVersion(Model):
    """The published table of one schema version."""

    table: str
    schema_version: str
    version: int


class TableInput(Model):
    """A table that a model reads: so many days of it for one day of the model, including the day itself."""

    table: str
    days: int


class TableItem(Model):
    """A table: its current schema, the schema versions that are published, its first day and the inputs of a model."""

    table: str
    kind: str
    schema_version: str
    fields: list[TableField]
    versions: list[TableVersion]
    first_expected: date | None
    settled_until: date | None
    inputs: list[TableInput]


class Tables(Model):
    """Every table."""

    items: list[TableItem]
    total: int


class RowsMetadata(Model):
    """Facts about the rows of a table."""

    table: str
    settled_until: date | None
    as_of: str | None
    withdrawn_inputs: list[str]


class Rows(Model):
    """Rows of a table: those of the trusted run of each partition."""

    items: list[Facts]
    total: int
    metadata: RowsMetadata


class SourceItem(Model):
    """A source: its breaker, its request limits and its requests in flight."""

    source: str
    kind: str
    requests_in_flight: int | None
    breaker: Facts | None
    quota: list[Facts]
    error: str | None


class Sources(Model):
    """Every source."""

    items: list[SourceItem]
    total: int


class AuditEntry(Model):
    """A manual action."""

    audit_id: int
    at: datetime
    actor: str
    command: str
    filters: Facts
    flags: Facts
    affected: int
    outcome: str


class AuditPage(Model):
    """A page of the audit log, newest first."""

    items: list[AuditEntry]
    total: int
    next: str | None


class EventItem(Model):
    """An event of the ledger."""

    position: int
    event_id: str
    type: str
    version: int
    idempotency_key: str
    occurred_at: datetime
    tenant_id: str
    workspace_id: str
    source: str
    run_id: str | None
    payload: Facts
    transaction_id: int | None


class EventPage(Model):
    """Events in the order of the ledger."""

    items: list[EventItem]
    total: int
    next: str | None

"""Alembic's entry: migrations run on the connection (and in the transaction) that `penstock db migrate` opened."""

from __future__ import annotations

from alembic import context

from penstock.db.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()

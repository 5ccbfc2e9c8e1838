"""Input runs of derived partitions: recorded when an attempt starts to read them, verified with its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.bulk import KEY_COLUMNS, Columns, same_key, staged
from penstock.db.engine import Database
from penstock.digests import comparable
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.projections.fact import Fact
from penstock.state.records import Consumed

if TYPE_CHECKING:
    import pyarrow as pa


_COLUMNS: Columns = {
    **KEY_COLUMNS,
    "run_id": sa.Text(),
    **{f"input_{name}": kind for name, kind in KEY_COLUMNS.items()},
    "input_run_id": sa.Text(),
    "input_content_digest": sa.Text(),
}
_OF_THIS_ATTEMPT = f"{same_key('a', 'i')} AND a.run_id = i.run_id"
# The first record of an attempt stays: if it is worked on twice, its payload may be that of the first time.
_RECORD = f"""
INSERT INTO attempt_input ({", ".join(_COLUMNS)})
SELECT {", ".join(f"i.{name}" for name in _COLUMNS)} FROM incoming_input i
WHERE EXISTS (SELECT 1 FROM partition_attempt a WHERE {_OF_THIS_ATTEMPT} AND a.outcome IS NULL)
AND NOT EXISTS (SELECT 1 FROM attempt_input a WHERE {_OF_THIS_ATTEMPT})
"""
_EARLIER = sa.text(f"""
SELECT {", ".join(f"a.{name}" for name in list(_COLUMNS)[:-1])} FROM attempt_input a
WHERE EXISTS (SELECT 1 FROM incoming_input i WHERE {_OF_THIS_ATTEMPT})
""").columns(**{name: _COLUMNS[name] for name in list(_COLUMNS)[:-1]})


class InputStore:
    """Records the input runs of attempts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, consumed: Mapping[AttemptKey, Sequence[Consumed]]) -> set[AttemptKey]:
        """Record the input runs of these open attempts, before anything is read. Returns the attempts for which other
        inputs are on record: they must not be derived from these."""
        rows = [
            (*attempt.partition, attempt.run_id, *one.partition, one.run_id, one.content_digest)
            for attempt, inputs in consumed.items()
            for one in inputs
        ]
        if not rows:
            return set()

        def write(connection: Connection) -> set[AttemptKey]:
            with staged(connection, "incoming_input", _COLUMNS, rows):
                before: dict[AttemptKey, dict[PartitionKey, str]] = {}
                for row in connection.execute(_EARLIER):
                    attempt = AttemptKey(PartitionKey(*row[:4]), RunId(row[4]))
                    before.setdefault(attempt, {})[PartitionKey(*row[5:9])] = row[9]
                connection.execute(sa.text(_RECORD))
            return {a for a, runs in before.items() if runs != {one.partition: one.run_id for one in consumed[a]}}

        return self._database.transact(write)


class Trusted(NamedTuple):
    """The inputs of the trusted run of a derived partition."""

    contract_fingerprint: str
    inputs: dict[PartitionKey, str]  # content digests, comparable with each other


class RecordedInput(NamedTuple):
    """An input run of one run of a derived partition."""

    key: PartitionKey
    run_id: RunId
    trusted_run_id: RunId | None  # the trusted run of the input now


class RecordedOutput(NamedTuple):
    """A run of a derived partition that read a run of this partition."""

    key: PartitionKey
    run_id: RunId
    input_run_id: RunId
    is_trusted: bool  # whether the derived run is trusted now


class InputReader:
    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, finished: Sequence[Fact]) -> pa.Table:
        """Return the input runs of these finished tasks, with one query per run."""
        import pyarrow as pa

        from penstock.projections.input_runs import CONSUMED

        table = schema.attempt_input
        wanted = {(fact.payload["partition_key"], fact.run_id) for fact in finished}
        runs = sorted({fact.run_id for fact in finished if fact.run_id})
        with self._database.snapshot() as connection:
            rows = connection.execute(
                sa.select(*(table.c[name] for name in CONSUMED.names)).where(table.c.run_id.in_(runs))
            ).all()
        kept = [row for row in rows if (f"{row[0]}/{row[1]}/{row[2]}/{row[3].isoformat()}", row.run_id) in wanted]
        columns = list(zip(*kept, strict=True)) or [()] * len(CONSUMED)
        return pa.Table.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, CONSUMED, strict=True)], schema=CONSUMED
        )

    def of_trusted(self, asset: str, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Trusted]:
        """Return the inputs of the trusted runs of these partitions of one model."""
        state, attempt, inputs = schema.partition_state, schema.partition_attempt, schema.attempt_input
        source, _, query_name = asset.partition(".")
        days = [key.logical_date for key in keys]
        its = [attempt.c[name] == state.c[name] for name in schema.KEY] + [attempt.c.run_id == state.c.current_run_id]
        used = [inputs.c[name] == state.c[name] for name in schema.KEY] + [inputs.c.run_id == state.c.current_run_id]
        statement = (
            sa.select(
                *(state.c[name] for name in schema.KEY),
                attempt.c.contract_fingerprint,
                *(inputs.c[f"input_{name}"] for name in schema.KEY),
                inputs.c.input_content_digest,
            )
            .join(attempt, sa.and_(*its))
            .outerjoin(inputs, sa.and_(*used))
            .where(state.c.source == source, state.c.query_name == query_name, state.c.status == "success")
            .where(state.c.logical_date.between(min(days), max(days)))
        )
        wanted, found = set(keys), dict[PartitionKey, Trusted]()
        with self._database.snapshot() as connection:
            for row in connection.execute(statement):
                key = PartitionKey(*row[:4])
                if key in wanted:
                    trusted = found.setdefault(key, Trusted(row.contract_fingerprint, {}))
                    if row.input_source is not None:
                        trusted.inputs[PartitionKey(*row[5:9])] = comparable(row.input_content_digest)
        return found

    def inputs_of(self, attempt: AttemptKey, limit: int) -> tuple[list[RecordedInput], int]:
        """Return the first `limit` input runs of a derived run in key order, and their number."""
        inputs, state = schema.attempt_input, schema.partition_state
        names = [inputs.c[f"input_{name}"] for name in schema.KEY]
        mine = [inputs.c[name] == getattr(attempt.partition, name) for name in schema.KEY]
        mine.append(inputs.c.run_id == attempt.run_id)
        its = [state.c[name] == inputs.c[f"input_{name}"] for name in schema.KEY]
        trusted = sa.case((state.c.status == "success", state.c.current_run_id))
        statement = (
            sa.select(*names, inputs.c.input_run_id, trusted)
            .select_from(inputs.outerjoin(state, sa.and_(*its)))
            .where(*mine)
            .order_by(*names)
            .limit(limit)
        )
        count = sa.select(sa.func.count()).select_from(inputs).where(*mine)
        with self._database.snapshot() as connection:
            found = [RecordedInput(PartitionKey(*row[:4]), row[4], row[5]) for row in connection.execute(statement)]
            return found, connection.scalar(count) or 0

    def outputs_of(self, key: PartitionKey, limit: int) -> tuple[list[RecordedOutput], int]:
        """Return the first `limit` derived runs that read a run of this partition, trusted ones first, and their
        number."""
        inputs, state = schema.attempt_input, schema.partition_state
        names = [inputs.c[name] for name in schema.KEY]
        mine = [inputs.c[f"input_{name}"] == getattr(key, name) for name in schema.KEY]
        its = [state.c[name] == inputs.c[name] for name in schema.KEY]
        its += [state.c.status == "success", state.c.current_run_id == inputs.c.run_id]
        is_trusted = state.c.current_run_id.is_not(None)
        statement = (
            sa.select(*names, inputs.c.run_id, inputs.c.input_run_id, is_trusted)
            .select_from(inputs.outerjoin(state, sa.and_(*its)))
            .where(*mine)
            .order_by(is_trusted.desc(), *names, inputs.c.run_id.desc())
            .limit(limit)
        )
        count = sa.select(sa.func.count()).select_from(inputs).where(*mine)
        with self._database.snapshot() as connection:
            rows = connection.execute(statement).all()
            found = [RecordedOutput(PartitionKey(*row[:4]), RunId(row[4]), RunId(row[5]), bool(row[6])) for row in rows]
            return found, connection.scalar(count) or 0

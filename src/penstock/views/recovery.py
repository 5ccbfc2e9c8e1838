"""Documents of backup and recovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing
from penstock.views.partitions import partition_fields
from penstock.views.warehouse import mismatch_items

if TYPE_CHECKING:
    from penstock.app.recovery import LakeRecovery
    from penstock.warehouse.rebuild import Rebuilt, TableDamage

# Only the state database holds these; an operator decides about them again after a recovery from the lake.
NOT_IN_THE_LAKE = (
    "demotions that were not published or exported yet",
    "rejected attempts and their complaints (sealed runs without a known verdict are listed as cancelled)",
    "marks: terminal, paused and held partitions, retries, breakers, backfills",
    "accepted runs without rows, and accepted runs that were never published: they are fetched again",
    "the input runs of models: the next run derives them again",
    "runs, events and audit entries that were not exported",
)


def backup_document(found: Mapping[str, Any]) -> Document:
    """The file of a backup, and the partitions and table versions in it."""
    return Document(dict(found))


def lake_recovery_document(found: LakeRecovery, *, dry_run: bool) -> Document:
    """The state that a recovery from the lake restores, by table, and what it cannot restore."""
    items = [
        {
            "table": one.asset,
            "partitions": len(one.decisions),
            "restored": len(one.restored),
            "conflicts": len(one.conflicts),
            "withdrawn": [str(key) for key in one.withdrawn],
            "demoted": [str(key) for key in (*one.demoted, *one.overtaken)],
            "raw_deleted": len(one.raw_gone),
            "sealed_without_verdict": sum(run.outcome == "CANCELLED" for run, _ in one.sealed),
            "ambiguous": [str(key) for key in one.ambiguous],
        }
        for one in found.assets
    ]
    return Document(
        {
            **listing(items, len(items)),
            "database_is_new": found.database_is_new,
            "restored": found.restored,
            "unusable": [
                {**partition_fields(attempt.partition), "run_id": attempt.run_id, "reason": reason}
                for attempt, reason in sorted(found.unusable.items())
            ],
            "damaged_files": dict(found.damaged_files),
            "left_alone": mismatch_items(found.left_alone),
            "exported_events": found.exported_events,
            "damaged_segments": dict(found.damaged_segments),
            "not_in_the_lake": list(NOT_IN_THE_LAKE),
            "dry_run": dry_run,
        }
    )


def database_recovery_document(
    damage: Mapping[str, TableDamage], rebuilt: Sequence[str], done: Sequence[Rebuilt], *, dry_run: bool
) -> Document:
    """The damage of each table, and the tables that a recovery from the database rebuilds."""
    items = [
        {
            "table": name,
            "created_again": found.created,
            "files": [{"path": path, "reason": reason} for path, reason in sorted(found.files.items())],
            "partitions": [
                {**partition_fields(key), "reason": reason} for key, reason in sorted(found.partitions.items())
            ],
        }
        for name, found in sorted(damage.items())
    ]
    return Document(
        {
            **listing(items, len(items)),
            "rebuilt": rebuilt,
            "loaded": sum(one.loaded for one in done),
            "hidden": sum(one.hidden for one in done),
            "broken": {str(key): reason for one in done for key, reason in one.broken.items()},
            "dry_run": dry_run,
        }
    )

"""Documents of customers: the list, and its synchronisation with a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.views.document import Document, listing, page

if TYPE_CHECKING:
    from penstock.config.settings import Customer
    from penstock.control.customers import CustomerPlan

LISTED_CHANGES = 100
CUSTOMER_FIELDS = ("id", "name", "time_zone", "active_from", "active_to")


def customers_document(found: Sequence[Customer], total: int, following: str | None) -> Document:
    """One page of customers."""
    items = [{name: getattr(customer, name) for name in CUSTOMER_FIELDS} for customer in found]
    return page(items, total, following)


def sync_document(plan: CustomerPlan, *, dry_run: bool) -> Document:
    """The first changes that bring the list of customers up to date with a source."""
    changes = plan.changes
    items = [{"id": c.id, "change": c.kind, "before": c.before, "after": c.after} for c in changes[:LISTED_CHANGES]]
    return Document(
        {
            **listing(items, len(changes)),
            "changed": 0 if dry_run else len(changes),
            "dry_run": dry_run,
            "ended": list(plan.ended),
        }
    )

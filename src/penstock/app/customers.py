"""The list of customers in the workspace file, and the accounts of its source."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock import interrupts
from penstock.app.context import Context, audit_entry
from penstock.errors import UsageError
from penstock.partition import new_run_id
from penstock.state.audited import AuditedAct

if TYPE_CHECKING:
    from penstock.config.settings import SourceSettings
    from penstock.control.customers import CustomerPlan
    from penstock.source.budget import Budget


_LISTING_REQUESTS = 500  # more than the managers of most hierarchies; unused ones are returned


class CustomerService:
    """Brings the list of customers up to date with the accounts of a source."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def plan_sync(self, source: str | None, levels: int, statuses: Sequence[str]) -> tuple[str, CustomerPlan]:
        """The source, and the changes that `sync` writes. Without `source`, the only source that lists accounts.

        >>> ws.customers.plan_sync("google_ads", levels=1, statuses=["ENABLED"])
        """
        from penstock.control.customers import plan_customers
        from penstock.source.protocol import Lister, RunContext
        from penstock.source.registry import lists_accounts, make_source

        able = [name for name, found in self._context.settings.sources.items() if lists_accounts(found)]
        if source is None and len(able) != 1:
            raise UsageError(f"name the source of the accounts with --source (sources that list them: {_listed(able)})")
        name = source or able[0]
        if name not in able:
            raise UsageError(f"{name!r} does not list accounts (sources that do: {_listed(able)})")
        with self._budget(self._context.settings.sources[name]) as budget:
            lister = make_source(self._context.settings.sources[name], RunContext(new_run_id(), budget))
            assert isinstance(lister, Lister)
            found = lister.accounts(levels, statuses)
        return name, plan_customers(self._context.settings, name, found, self._context.now())

    @contextmanager
    def _budget(self, source: SourceSettings) -> Iterator[Budget]:
        """The budget of a listing in this process: requests of the quota, of which the unused ones are returned.
        Raises QuotaUsedUp if none is left."""
        from penstock.errors import QuotaUsedUp
        from penstock.flow.quota import LOCAL_MARGIN
        from penstock.source.budget import Budget, RequestClaim

        if not source.quotas:
            yield Budget(source.pace)
            return
        began = time.time()
        claim = self._context.quotas.claim(source.name, source.quotas, _LISTING_REQUESTS, at_most=_LISTING_REQUESTS)
        if not claim.requests:
            raise QuotaUsedUp(claim.quota.used_up() or f"quota of {source.name} is used up")
        expires_at = began + claim.seconds - LOCAL_MARGIN
        requests = RequestClaim(new_run_id(), source.name, claim.requests, expires_at, "the end of its window")
        budget = Budget(source.pace, claim=requests)
        budget.allow(claim.requests)
        try:
            yield budget
        finally:
            used = budget.take_spent()
            self._context.quotas.settle(claim, used, spans=used)

    def sync(
        self, source: str, plan: CustomerPlan, *, actor: str | None = None, flags: Mapping[str, Any] | None = None
    ) -> None:
        """Write the list of customers. The audit log has a line before the file changes, and one after it.

        >>> ws.customers.sync(*ws.customers.plan_sync("google_ads", levels=1, statuses=["ENABLED"]), actor="kim")
        """
        from penstock.control.customers import write_customers

        entry = audit_entry(actor, AuditedAct.CUSTOMERS_SYNC, {"source": source}, flags)
        interrupts.begin_work()
        self._context.note(entry, len(plan.changes), "begun")
        write_customers(plan)
        self._context.note(entry, len(plan.changes), "done")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

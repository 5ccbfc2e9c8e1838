"""The plan of a run as a value: which partitions are attempted, and why. Previews and execution use the same plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never

from penstock.contract.contract import Contract
from penstock.control.ranges import without_frozen
from penstock.errors import ConfigError
from penstock.expected import ExpectedRange
from penstock.flow.graph import FanIn
from penstock.html import MOST_ROWS, fragment, paragraph, table
from penstock.lifecycle import AttemptReason, PartitionStatus, PlanReason
from penstock.plural import counted as counted_noun
from penstock.state.reader import StateReader
from penstock.state.records import Candidate, Planned
from penstock.state.view_sql import Order

# The control loop attempts these by itself.
DUE = (PlanReason.MISSING, PlanReason.REQUEUED, PlanReason.RETRY, PlanReason.RESTATE)
ASKED_FOR = (*DUE, PlanReason.WAITING)  # a run that a person starts does not wait for the end of a pause


def asked_for(reprocess: bool) -> Sequence[PlanReason]:
    """The reasons for which a run that a person starts attempts partitions."""
    return (*ASKED_FOR, PlanReason.SUCCESS) if reprocess else ASKED_FOR


@dataclass(frozen=True, slots=True)
class Plan:
    """The partitions to attempt now. `held` counts partitions that another run works on, `paused` those that an
    operator paused."""

    items: Sequence[Planned]
    held: int = 0
    paused: int = 0
    counts: Mapping[AttemptReason, int] | None = None  # by reason, when not all items are listed
    fan_ins: Sequence[FanIn] = ()  # what partitions of models wait for
    waiting: int = 0  # due partitions of models whose inputs are neither published nor in this run
    is_divided: bool = False  # too large for one run: counted here, executed in several runs
    later: int = 0  # to be fetched in the runs after this one
    blocked: Mapping[str, int] = field(default_factory=dict)  # due, but the breaker of the source is open

    @property
    def reasons(self) -> Mapping[AttemptReason, int]:
        return Counter(item.reason for item in self.items) if self.counts is None else self.counts

    @property
    def total(self) -> int:
        return sum(self.reasons.values())

    def _repr_html_(self) -> str:
        beside = {
            "that another run works on": self.held,
            "that an operator paused": self.paused,
            "of models that wait for their inputs": self.waiting,
            "that are fetched in later runs": self.later,
            **{f"held back by the breaker of {source}": number for source, number in self.blocked.items()},
        }
        return fragment(
            f"plan of {counted_noun(self.total)}",
            table(("reason", "partitions"), self.reasons.items()) if self.total else "",
            table(("partition", "reason"), ((i.key, i.reason) for i in self.items[:MOST_ROWS]), self.total)
            if self.items
            else "",
            *(paragraph(f"{counted_noun(number)} {meaning}") for meaning, number in beside.items() if number),
        )

    def and_models(self, items: Sequence[Planned], fan_ins: Sequence[FanIn], waiting: int) -> Plan:
        """This plan, followed by partitions of models."""
        counts = Counter(self.reasons) + Counter(item.reason for item in items)
        return replace(self, items=[*self.items, *items], counts=counts, fan_ins=fan_ins, waiting=waiting)


def make_plan(
    reader: StateReader,
    ranges: Sequence[ExpectedRange],
    contracts: Mapping[str, Contract],
    now: datetime,
    *,
    restated: Mapping[str, Sequence[int]],
    reasons: Sequence[PlanReason] = DUE,
    status: PartitionStatus | None = None,
    judged_before: datetime | None = None,
    schema_version: str | None = None,
    order: Order = "asset",
    limit: int | None = None,
) -> Plan:
    """Plan the partitions of `ranges` that may be attempted for these reasons; PlanReason.SUCCESS fetches accepted
    partitions again.

    A failed partition is due again only when the retry policy or an operator decides it. `restated` are the ages, by
    query, at which days are fetched again. With `judged_before`, accepted partitions count only if their last verdict
    is older. Frozen partitions are never attempted.
    """
    found = reader.candidates(
        without_frozen(ranges),
        reasons,
        now,
        restated,
        status=status,
        judged_before=judged_before,
        schema_version=schema_version,
        order=order,
        limit=limit,
    )
    prints = {name: (contract.fingerprint, contract.schema_version) for name, contract in contracts.items()}
    return Plan([planned(candidate, *prints[candidate.key.query_name]) for candidate in found])


def planned(
    candidate: Candidate, fingerprint: str, schema_version: str, reason: AttemptReason | None = None
) -> Planned:
    """The candidate as an item of a plan, with the limits that are checked again when it is issued. `reason` replaces
    the one that follows from the state of the partition."""
    return Planned(
        candidate.key,
        candidate.last_attempt_no,
        reason or attempt_reason(candidate.reason),
        fingerprint,
        schema_version,
        max_attempts=candidate.max_attempts,
        expires_at=candidate.expires_at,
    )


def attempt_reason(reason: PlanReason) -> AttemptReason:
    """The reason that is stored with an attempt. Raises ValueError if the state of the partition allows no attempt."""
    match reason:
        case PlanReason.MISSING:
            return AttemptReason.MISSING
        case PlanReason.REQUEUED:
            return AttemptReason.REQUEUED
        case PlanReason.RETRY:
            return AttemptReason.RETRY
        case PlanReason.RESTATE:
            return AttemptReason.RESTATE
        case PlanReason.WAITING:
            return AttemptReason.POSTPONED
        case PlanReason.SUCCESS:
            return AttemptReason.REPROCESS
        case PlanReason.OPEN | PlanReason.PAUSED | PlanReason.FAILED:
            raise ValueError(f"a partition that is {reason} is not attempted")
        case _:
            assert_never(reason)


def preview(
    reader: StateReader,
    ranges: Sequence[ExpectedRange],
    contracts: Mapping[str, Contract],
    now: datetime,
    *,
    restated: Mapping[str, Sequence[int]],
    reasons: Sequence[PlanReason],
    status: PartitionStatus | None = None,
    limit: int | None = None,
    counted: Callable[[int], None] = lambda total: None,
) -> Plan:
    """The plan with all its counts and at most `limit` of its items: a million partitions are counted, not listed.
    Calls `counted` with the number of partitions to attempt as soon as it is known."""
    found = reader.reasons(without_frozen(ranges), now, restated, status)
    counted(sum(found.get(reason, 0) for reason in reasons))
    plan = make_plan(reader, ranges, contracts, now, restated=restated, reasons=reasons, status=status, limit=limit)
    return replace(
        plan,
        held=found.get(PlanReason.OPEN, 0),
        paused=found.get(PlanReason.PAUSED, 0),
        counts={attempt_reason(reason): found[reason] for reason in reasons if found.get(reason)},
    )


def refuse_changed_fields(reader: StateReader, contracts: Mapping[str, Contract]) -> None:
    """Raise ConfigError if fields changed without a new `schema_version`: a table never holds rows of two schemas."""
    for row in reader.contracts():
        today = contracts.get(row.query_name)
        if (
            today is None
            or not today.fields
            or (row.source, row.schema_version) != (today.source, today.schema_version)
        ):
            continue
        before, now = ({c.name: c.type for c in contract.columns} for contract in (Contract.from_body(row.body), today))
        if before != now:
            raise ConfigError(
                f"{today.place}: its fields changed but schema_version is still"
                f" {today.schema_version} ({_difference(before, now)}): give it a new schema_version"
            )


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    changes = [f"{name} {kind} was removed" for name, kind in before.items() if name not in now]
    changes += [f"{name} {kind} was added" for name, kind in now.items() if name not in before]
    changes += [f"{name} was {before[name]}, is {kind}" for name, kind in now.items() if before.get(name, kind) != kind]
    return "; ".join(changes)

"""shrink: a guard against a partition that has lost rows since the trusted run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from penstock.config.checks import Shrink
from penstock.contract.checks.base import CountCheck
from penstock.plural import counted


class ShrinkCheck(CountCheck[Shrink]):
    __slots__ = ()

    is_guard = True

    @property
    def default_name(self) -> str:
        return "shrink"

    def problems(self, count: int, previous: int | None) -> Iterator[str]:
        max_drop = self.declared.max_drop
        if previous and count < previous * (1 - max_drop):
            yield (
                f"{counted(count, 'row')} where the trusted run has {previous:,}: a drop of {1 - count / previous:.0%},"
                f" at most {max_drop:.0%} is allowed"
            )

    def missing_input(self, day: date | None) -> str:
        return "needs a trusted run to compare with"

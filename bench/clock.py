"""A fixed clock. It is pickled to Spark's workers, so this module must not import anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StandingClock:
    moment: datetime

    def __call__(self) -> datetime:
        return self.moment

"""Settings of alerts: the rules that are evaluated, and the channels that get notifications."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, Self, get_args

import pydantic
from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from penstock.config.freshness import ClockTime
from penstock.config.values import LIST, Declared, Duration, KeyDoc, Name, Names, TimeZone, not_empty, refusal

_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%")

RuleKind = Literal[
    "breaker_open", "terminal", "stale", "late", "backfill_finished", "run_broken", "publication_stuck", "api_end"
]
KINDS: tuple[RuleKind, ...] = get_args(RuleKind)


class Grouping(StrEnum):
    """What one alert of a rule is about."""

    RULE = "rule"  # everything that the rule finds
    SOURCE = "source"
    TABLE = "table"
    DAY = "day"  # a day of a table
    CAUSE = "cause"  # failures of one source with the same error class and the same message but for its values
    EACH = "each"  # each backfill


@dataclass(frozen=True, slots=True)
class RuleShape:
    """What a kind of rule takes: its groupings, the default first; whether it has a threshold and filters."""

    groupings: tuple[Grouping, ...]
    counts: bool = False  # takes a threshold
    shares: bool = False  # the threshold may be a share of the expected partitions
    filters: tuple[str, ...] = ()
    after: timedelta = timedelta()
    counts_old_ones: bool = False  # counts only what has been waiting for `after`


_R, _S, _T, _C, _E = Grouping.RULE, Grouping.SOURCE, Grouping.TABLE, Grouping.CAUSE, Grouping.EACH
_D = Grouping.DAY
SHAPES: dict[RuleKind, RuleShape] = {
    "breaker_open": RuleShape((_S, _R), filters=("source",)),
    "api_end": RuleShape((_S, _R), filters=("source",)),
    "terminal": RuleShape((_C, _T, _S, _R), counts=True, filters=("source", "table")),
    "stale": RuleShape((_T, _S, _R), counts=True, shares=True, filters=("source", "table")),
    "late": RuleShape((_D, _T, _S, _R), filters=("source", "table")),
    "backfill_finished": RuleShape((_E,)),
    "run_broken": RuleShape((_R,), counts=True),
    "publication_stuck": RuleShape(
        (_T, _S, _R), counts=True, filters=("source", "table"), after=timedelta(minutes=30), counts_old_ones=True
    ),
}


@dataclass(frozen=True, slots=True)
class Threshold:
    """The smallest number of partitions for which a rule applies, or the smallest share of the expected ones."""

    count: int = 1
    share: Fraction | None = None

    def is_reached(self, count: int, expected: int = 0) -> bool:
        if self.share is None:
            return count >= self.count
        return count > 0 and count >= self.share * expected

    def __str__(self) -> str:
        return str(self.count) if self.share is None else f"{float(self.share * 100):g}%"


def _threshold(value: object) -> Threshold:
    if isinstance(value, Threshold):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return Threshold(value)
    found = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < (share := Fraction(found[1]) / 100) <= 1:
        raise ValueError(f"{value!r} is not a threshold: write a number of partitions, or a share such as 5%")
    return Threshold(share=share)


class QuietHours(Declared):
    """The time of each day in which a rule sends no notifications: they wait for its end."""

    from_: Annotated[ClockTime, pydantic.Field(validation_alias="from")]
    until: ClockTime
    time_zone: TimeZone = "UTC"

    documentation: ClassVar = {
        "from": KeyDoc("When the quiet hours begin, by the clock of `time_zone`.", '"22:00"', "time of day"),
        "until": KeyDoc("When they end; before `from`, on the next day.", '"07:00"', "time of day"),
        "time_zone": KeyDoc("The time zone of both.", "Europe/Berlin", "time zone"),
    }

    @pydantic.model_validator(mode="after")
    def _not_the_whole_day(self) -> Self:
        if self.from_ == self.until:
            raise ValueError("from and until are the same: no notification would ever be sent")
        return self


class AlertRule(Declared):
    """One rule: a condition, how long it must hold, and who is notified."""

    rule: RuleKind
    name: Name | None = None
    channels: Names | None = None
    source: str | None = None
    table: str | None = None
    threshold: Annotated[Threshold, BeforeValidator(_threshold), PlainSerializer(str, when_used="json")] | None = None
    after: Duration | None = None
    include_at_risk: bool = False
    group_by: Literal["rule", "source", "table", "day", "cause"] | None = None
    quiet_hours: QuietHours | None = None
    repeat: Duration | None = None

    documentation: ClassVar = {
        "rule": KeyDoc("The condition.", "terminal"),
        "name": KeyDoc(
            "The name of the rule, if several have the same condition. Default: the condition.", "demo_terminal"
        ),
        "channels": KeyDoc("The channels that are notified. Default: all.", "[ops]"),
        "source": KeyDoc("Only this source.", "demo"),
        "table": KeyDoc("Only this table: `source.query`, or `models.name`.", "demo.campaign_daily"),
        "threshold": KeyDoc(
            "The smallest number of partitions (of runs, for `run_broken`), or for `stale` a share of the expected"
            " partitions. Default: 1.",
            "5%",
            "number or share",
        ),
        "after": KeyDoc(
            "How long the condition holds before the alert fires. Default: at once; 30m for `publication_stuck`.", "5m"
        ),
        "include_at_risk": KeyDoc("For `late`: fires also when the deadline is at risk.", "true"),
        "group_by": KeyDoc(
            "What one alert is about: everything (`rule`), a source, a table, a day of a table (only `late`), or"
            " failures with the same cause. Default: `source` for `breaker_open` and `api_end`, `cause` for `terminal`,"
            " `day` for `late`, `rule` for `run_broken`, else `table`.",
            "source",
        ),
        "quiet_hours": KeyDoc(
            "When no notification is sent; those of that time are sent at its end.",
            '{from: "22:00", until: "07:00", time_zone: Europe/Berlin}',
        ),
        "repeat": KeyDoc("How often a firing alert is sent again. Default: never.", "4h"),
    }

    @property
    def label(self) -> str:
        """The name under which the states of the rule are stored."""
        return self.name or self.rule

    @property
    def shape(self) -> RuleShape:
        return SHAPES[self.rule]

    @property
    def grouping(self) -> Grouping:
        return self.shape.groupings[0] if self.group_by is None else Grouping(self.group_by)

    @property
    def least(self) -> Threshold:
        return self.threshold or Threshold()

    @property
    def holds_for(self) -> timedelta:
        """How long the condition must hold before the alert fires."""
        return self.shape.after if self.after is None else self.after

    def covers(self, source: str, table: str | None = None) -> bool:
        """Whether the filters of the rule include a source, or a table of it."""
        if self.source is not None and source != self.source:
            return False
        return self.table is None or table is None or table == self.table

    @pydantic.model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        shape, problems = self.shape, list[tuple[tuple[int | str, ...], str]]()
        for key in ("source", "table"):
            if getattr(self, key) is not None and key not in shape.filters:
                problems.append(((key,), f"{self.rule} takes no {key}"))
        if self.threshold is not None and not shape.counts:
            problems.append((("threshold",), f"{self.rule} takes no threshold"))
        elif self.threshold is not None and self.threshold.share is not None and not shape.shares:
            problems.append((("threshold",), f"{self.rule} takes a number, not a share"))
        if self.include_at_risk and self.rule != "late":
            problems.append((("include_at_risk",), "belongs to the rule late"))
        if self.group_by is not None and self.grouping not in shape.groupings:
            known = ", ".join(shape.groupings)
            problems.append((("group_by",), f"{self.rule} cannot be grouped by {self.group_by} (known: {known})"))
        if self.rule == "backfill_finished" and (self.after or self.repeat):
            problems.append((("after" if self.after else "repeat",), "a finished backfill is reported once, at once"))
        if problems:
            raise refusal(problems)
        return self


def _web_address(url: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+\S*", url):
        raise ValueError("must be a web address: https://hooks.example.com/penstock")
    return url


class ChannelSettings(Declared):
    """Where notifications are sent. Addresses and secrets are never shown: an address often holds a key."""

    webhook: Annotated[str, AfterValidator(_web_address)] | None = pydantic.Field(default=None, repr=False)
    secret: Annotated[str, pydantic.Field(min_length=1)] | None = pydantic.Field(default=None, repr=False)
    timeout: Duration = timedelta(seconds=10)
    apprise: (
        Annotated[tuple[Annotated[str, pydantic.Field(min_length=1)], ...], LIST, AfterValidator(not_empty)] | None
    ) = pydantic.Field(default=None, repr=False)

    documentation: ClassVar = {
        "webhook": KeyDoc(
            "The address that gets each notification as a CloudEvent. Excludes `apprise`.", "${HOOK_URL}", "URL"
        ),
        "secret": KeyDoc("The key of the signature of a webhook.", "${HOOK_SECRET}"),
        "timeout": KeyDoc("How long one request to a webhook may take.", "5s"),
        "apprise": KeyDoc(
            "Addresses of services in the form of Apprise: Slack, mail, Teams, PagerDuty (extra `alerts`).",
            '["${SLACK_URL}"]',
            "list of URLs",
        ),
    }

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.webhook is None) == (self.apprise is None):
            raise ValueError("needs either webhook or apprise: where notifications go")
        if self.webhook is None and "secret" in self.model_fields_set:
            raise ValueError("secret belongs to a webhook")
        return self

    @property
    def kind(self) -> Literal["webhook", "apprise"]:
        return "apprise" if self.webhook is None else "webhook"


class AlertSettings(Declared):
    """Alerts: their channels and rules."""

    channels: dict[Name, ChannelSettings] = pydantic.Field(default_factory=dict)
    rules: Annotated[tuple[AlertRule, ...], LIST] = ()
    every: Duration = timedelta(seconds=30)

    documentation: ClassVar = {
        "channels": KeyDoc("The channels by name.", "{ops: {webhook: '${HOOK_URL}', secret: '${HOOK_SECRET}'}}"),
        "rules": KeyDoc("The rules.", "[{rule: breaker_open, channels: [ops], after: 5m}, {rule: run_broken}]"),
        "every": KeyDoc("The time between two evaluations of `penstock control serve`.", "1m"),
    }

    @pydantic.field_validator("rules")
    @classmethod
    def _names_differ(cls, rules: tuple[AlertRule, ...]) -> tuple[AlertRule, ...]:
        first: dict[str, int] = {}
        repeated = [at for at, rule in enumerate(rules) if first.setdefault(rule.label, at) != at]
        if repeated:
            raise refusal(
                (
                    (at, "name" if rules[at].name else "rule"),
                    f"{rules[at].label!r} is the name of a rule already: add a name",
                )
                for at in repeated
            )
        return rules

    def channels_of(self, rule: AlertRule) -> tuple[str, ...]:
        """The names of the channels that a rule notifies."""
        return tuple(self.channels) if rule.channels is None else rule.channels

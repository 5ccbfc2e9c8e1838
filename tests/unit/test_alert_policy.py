"""The policy of alerts: settings, quiet hours, causes and links."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.config.alerts import KINDS, SHAPES, AlertRule, QuietHours
from penstock.config.loading import load_settings
from penstock.control.alerting.causes import cause_subject, normalised
from penstock.control.alerting.findings import MOST_CAUSES, OTHER_CAUSES, Finding, conditions_of
from penstock.control.alerting.quiet import after_quiet_hours
from penstock.control.alerting.rules import stale_tables
from penstock.errors import ConfigError
from penstock.source.registry import hooks_of

HEAD = """\
tenant: acme
workspace: ads
state: sqlite:///state.db
lake: ./lake
sources: {demo: {kind: demo}}
queries: {daily: {source: demo, fields: [{name: clicks, type: long}]}}
models: {sums: {sql: sums.sql, depends_on: [demo.daily]}}
alerts:
  channels:
    ops: {webhook: "https://hooks.example.com/${HOOK_KEY}", secret: "${HOOK_SECRET}"}
    team: {apprise: ["slack://${SLACK_KEY}/b/c"]}
  rules:
"""
SECRETS = {"HOOK_KEY": "key-of-the-hook", "HOOK_SECRET": "secret-of-the-hook", "SLACK_KEY": "key-of-slack"}


def load(folder: Path, *rules: str, text: str | None = None) -> Any:
    (folder / "sums.sql").write_text("SELECT 1")
    body = text if text is not None else HEAD + "".join(f"    - {{{rule}}}\n" for rule in rules)
    (folder / "penstock.yaml").write_text(body)
    return load_settings(folder, SECRETS, hooks_of)


def test_every_rule_of_the_workspace_file_is_read(tmp_path: Path) -> None:
    alerts = load(
        tmp_path,
        "rule: breaker_open, channels: [ops], after: 5m, source: demo",
        "rule: terminal, threshold: 10, group_by: source",
        "rule: stale, table: models.sums, threshold: 5%, repeat: 4h",
        "rule: late, include_at_risk: true",
        "rule: late, name: only_late, channels: [team]",
        "rule: backfill_finished",
        "rule: run_broken",
        "rule: api_end, source: demo",
        'rule: publication_stuck, quiet_hours: {from: "22:00", until: "07:00", time_zone: Europe/Berlin}',
    ).alerts
    assert {rule.rule for rule in alerts.rules} == set(KINDS) == set(SHAPES)
    assert [alerts.channels_of(rule) for rule in alerts.rules[:2]] == [("ops",), ("ops", "team")]
    assert [rule.holds_for for rule in alerts.rules[:2]] == [timedelta(minutes=5), timedelta()]
    assert alerts.rules[2].least.is_reached(5, 100)
    assert not alerts.rules[2].least.is_reached(4, 100)
    assert alerts.rules[-1].holds_for == timedelta(minutes=30)
    assert not any(secret in repr(alerts) for secret in SECRETS.values())


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("rule: lat", "rule: must be"),
        ("rule: late, channels: [opps]", "channels[0]: 'opps' is not a known channel (known: ops, team)"),
        ("rule: late, source: dem", "source: 'dem' is not a known source (known: demo); did you mean 'demo'?"),
        ("rule: stale, table: demo.dayly", "table: 'demo.dayly' is not a known table (known: demo.daily, models.sums)"),
        ("rule: stale, threshold: 0", "threshold: 0 is not a threshold: write a number of partitions, or a share"),
        ("rule: stale, threshold: 101%", "threshold: '101%' is not a threshold"),
        ("rule: terminal, threshold: 5%", "threshold: terminal takes a number, not a share"),
        ("rule: late, threshold: 5", "threshold: late takes no threshold"),
        ("rule: run_broken, source: demo", "source: run_broken takes no source"),
        ("rule: breaker_open, table: demo.daily", "table: breaker_open takes no table"),
        ("rule: breaker_open, group_by: table", "breaker_open cannot be grouped by table (known: source, rule)"),
        ("rule: stale, include_at_risk: true", "include_at_risk: belongs to the rule late"),
        ("rule: backfill_finished, after: 5m", "after: a finished backfill is reported once, at once"),
        ("rule: late, colour: red", "unknown key 'colour'"),
        ('rule: late, quiet_hours: {from: "22:00", until: "22:00"}', "quiet_hours: from and until are the same"),
        ('rule: late, quiet_hours: {from: "25:00", until: "22:00"}', "quiet_hours.from: '25:00' is not a time of day"),
        ("rule: late, quiet_hours: {from: '22:00', until: '07:00', time_zone: Berlin}", "is not a known time zone"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_rule_is_reported_with_its_place(tmp_path: Path, rule: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, "rule: run_broken, name: first", rule)
    assert str(refused.value).startswith("penstock.yaml:14: alerts.rules[1]")
    assert expected in str(refused.value)


def test_two_rules_with_one_name_and_rules_without_a_channel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rules\[1\].rule: 'late' is the name of a rule already: add a name"):
        load(tmp_path, "rule: late", "rule: late")
    without = HEAD.partition("  channels:")[0] + "  rules: [{rule: late}]\n"
    with pytest.raises(ConfigError, match=r"penstock.yaml:9: alerts.rules\[0\]: has no channel"):
        load(tmp_path, text=without)


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("{}", "needs either webhook or apprise"),
        ("{webhook: 'https://a.example', apprise: ['json://b']}", "needs either webhook or apprise"),
        ("{webhook: 'ftp://a.example/key-of-the-hook'}", "must be a web address"),
        ("{apprise: []}", "must not be empty"),
        ("{apprise: ['json://b'], secret: s}", "secret belongs to a webhook"),
    ],
)
def test_a_mistake_in_a_channel_is_reported_without_its_address(tmp_path: Path, channel: str, expected: str) -> None:
    text = HEAD.partition("  channels:")[0] + f"  channels: {{ops: {channel}}}\n"
    with pytest.raises(ConfigError, match=r"penstock.yaml:9: alerts.channels.ops") as refused:
        load(tmp_path, text=text)
    assert expected in str(refused.value)
    assert "key-of-the-hook" not in str(refused.value)


NIGHT = QuietHours.model_validate({"from": "22:00", "until": "07:00", "time_zone": "Europe/Berlin"})
NOON = QuietHours.model_validate({"from": "12:00", "until": "14:00"})
REPEATED = QuietHours.model_validate({"from": "01:00", "until": "02:30", "time_zone": "Europe/Berlin"})


@pytest.mark.parametrize(
    ("quiet", "moment", "expected"),
    [
        (None, "2024-06-11T23:00", "2024-06-11T23:00"),
        (NOON, "2024-06-11T11:59", "2024-06-11T11:59"),
        (NOON, "2024-06-11T12:00", "2024-06-11T14:00"),
        (NOON, "2024-06-11T14:00", "2024-06-11T14:00"),
        (NIGHT, "2024-06-11T19:59", "2024-06-11T19:59"),
        (NIGHT, "2024-06-11T20:00", "2024-06-12T05:00"),
        (NIGHT, "2024-06-12T04:59", "2024-06-12T05:00"),
        (NIGHT, "2024-03-30T21:00", "2024-03-31T05:00"),  # the night in which summer begins: eight hours
        (NIGHT, "2024-10-26T20:00", "2024-10-27T06:00"),  # the night in which it ends: ten hours
        (REPEATED, "2024-10-26T23:10", "2024-10-27T00:30"),
        (REPEATED, "2024-10-27T01:10", "2024-10-27T01:30"),  # 02:10 for the second time
    ],
)
def test_quiet_hours_follow_the_local_clock(quiet: QuietHours | None, moment: str, expected: str) -> None:
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert after_quiet_hours(quiet, at) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_messages_that_differ_in_values_have_one_cause() -> None:
    messages = [
        "row 17 of 'part-1.csv' (2024-06-01) in s3://bucket/raw/01J0RQ8W9M6H1X5N3T7V2C4B8D has 3.5 columns",
        "row 9  of 'part-22.csv' (2024-06-30) in s3://bucket/raw/01J0RQ8W9M8Q2Z6Y4K1P5S7D3F has 12 columns",
    ]
    assert len({cause_subject("demo", "data", one) for one in messages}) == 1
    assert normalised(messages[0]) == "row # of '*' (#) in * has # columns"
    quoted = ["the account's column 'X1' isn't valid", "the account's column 'a b' isn't valid"]
    assert len({cause_subject("demo", "data", one) for one in quoted}) == 1
    keys = [f"demo/{customer}/campaign_daily/2024-06-01 has no rows" for customer in ("cust_a", "north-7")]
    assert len({cause_subject("demo", "data", one) for one in keys}) == 1
    others = [("ads", "data", messages[0]), ("demo", "config", messages[0]), ("demo", "data", "no such column")]
    assert len({cause_subject("demo", "data", messages[0]), *(cause_subject(*other) for other in others)}) == 4


def test_a_share_is_measured_on_all_expected_partitions_of_the_group() -> None:
    now = datetime(2024, 6, 11, tzinfo=UTC)
    counts = [
        {"source": "demo", "query": "a", "display": "stale", "n": 10},
        {"source": "demo", "query": "a", "display": "materialized", "n": 90},
        {"source": "demo", "query": "b", "display": "materialized", "n": 100},
    ]
    by_table = AlertRule.model_validate({"rule": "stale", "threshold": "10%"})
    by_source = AlertRule.model_validate({"rule": "stale", "threshold": "10%", "group_by": "source"})
    assert [one.subject for one in conditions_of(by_table, stale_tables(counts, now), now, None)] == ["demo.a"]
    assert conditions_of(by_source, stale_tables(counts, now), now, None) == []
    lower = AlertRule.model_validate({"rule": "stale", "threshold": "5%", "group_by": "source"})
    [found] = conditions_of(lower, stale_tables(counts, now), now, "https://penstock.example.com")
    assert (found.subject, found.count) == ("demo", 10)
    assert found.message == "10 of 100 partitions of demo.a are stale"
    assert found.link == "https://penstock.example.com/tables/demo.a"


def test_a_freed_place_does_not_report_a_cause_of_the_shared_alert_again() -> None:
    now, rule = datetime(2024, 6, 11, tzinfo=UTC), AlertRule(rule="terminal")
    findings = [Finding("demo", "demo.t", 1, now, f"error {n}", cause=f"c{n:03}") for n in range(MOST_CAUSES + 2)]
    first = {one.subject for one in conditions_of(rule, findings, now, None)}
    assert first == {*(f"c{n:03}" for n in range(MOST_CAUSES)), OTHER_CAUSES}
    assert {one.subject for one in conditions_of(rule, findings[1:], now, None, first)} == first - {"c000"}


def test_a_threshold_is_reached_now_however_old_the_first_partition_is() -> None:
    now = datetime(2024, 6, 11, tzinfo=UTC)
    old = [Finding("demo", "demo.t", 2, now - timedelta(days=3), "error", cause="c")]
    for written, since in (({}, old[0].since), ({"threshold": 2}, now)):
        [found] = conditions_of(AlertRule.model_validate({"rule": "terminal", **written}), old, now, None)
        assert found.first_seen == since
    stuck = AlertRule.model_validate({"rule": "publication_stuck", "threshold": 2})
    assert conditions_of(stuck, old, now, None)[0].first_seen == old[0].since, "it counts only those that are old"


def test_a_rule_finds_only_what_its_filters_cover() -> None:
    now = datetime(2024, 6, 11, tzinfo=UTC)
    findings = [Finding(source, f"{source}.{name}", 1, now, "error", cause=f"{source}/{name}")
                for source in ("ads", "demo") for name in ("a", "b")]  # fmt: skip
    for written, subjects in (
        ({}, ["ads/a", "ads/b", "demo/a", "demo/b"]),
        ({"source": "demo"}, ["demo/a", "demo/b"]),
        ({"table": "ads.b"}, ["ads/b"]),
    ):
        rule = AlertRule.model_validate({"rule": "terminal", **written})
        assert [one.subject for one in conditions_of(rule, findings, now, None)] == subjects

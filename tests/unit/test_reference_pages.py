"""Every key of the workspace file and every error class is documented, and the documented examples are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from reference.errors import catalogue
from reference.settings import SOURCES, Section, check_example, sections, source_sections

from penstock.cli.main import app
from penstock.config.check_keys import BESIDE_KEYS, CHECK_KEYS
from penstock.config.checks import check_from_mapping
from penstock.config.loading import load_settings
from penstock.config.values import Declared, KeyDoc
from penstock.errors import PenstockError
from penstock.source import http_options
from penstock.source.google_ads import options as google_ads
from penstock.source.options import Options, read_options
from penstock.source.paging import Offsets, PageNumbers
from penstock.source.registry import hooks_of

SECTIONS = sections()
CHECKS = [section for section in SECTIONS if section.meaning]
SOURCE_SECTIONS = [(kind, section) for kind in SOURCES for section in source_sections(kind)]

OIDC = {"issuer": "https://login.example.com", "client_id": "penstock", "roles": {"viewer": ["*"]}}

# Keys that are valid only with another one.
ALONGSIDE = {
    "spark.python": {"master": "yarn"},
    "spark.environment": {"master": "yarn"},
    "lineage.endpoint": {"url": "https://marquez.example.com"},
    "lineage.api_key": {"url": "https://marquez.example.com"},
    "lineage.timeout": {"url": "https://marquez.example.com"},
    "queries.<name>.restate.ages": {"days": 30},
    **{
        f"{section}.<name>.freshness.{key}": {"complete_by": "09:00"}
        for section in ("queries", "models")
        for key in ("complete_after_days", "time_zone", "require")
    },
    **{
        f"console.oidc.{name}": OIDC
        for name in ("issuer", "client_id", "client_secret", "scopes", "name_claim", "role_claim", "roles")
    },
    "alerts.channels.<name>.apprise": {"webhook": None},
    "alerts.rules[].threshold": {"rule": "stale"},
    "alerts.rules[].include_at_risk": {"rule": "late"},
    **{
        f"alerts.rules[].quiet_hours.{key}": {"from": "21:00", "until": "06:00"}
        for key in ("from", "until", "time_zone")
    },
}
NEEDS: dict[tuple[Any, str], list[str]] = {
    **{
        (model, key): ["method"]
        for model in (http_options.Request, http_options.HttpOptions)
        for key in ("body", "form")
    },
    **{
        (http_options.ReportJob, key): ["result_address"]
        for key in http_options.ReportJob.model_fields
        if "result" not in key
    },
    (http_options.ErrorRule, "values"): ["path"],
    (http_options.ErrorRule, "error_class"): ["status"],
    (http_options.ErrorRule, "retry_after"): ["status"],
    (google_ads.Options, "insecure"): ["endpoint"],
    (google_ads.QueryOptions, "conditions"): ["resource"],
    (google_ads.QueryOptions, "select"): ["resource"],
    (google_ads.QueryOptions, "enums"): ["resource"],
    (PageNumbers, "size_param"): ["size"],
    (Offsets, "size_param"): ["size"],
}
WORKSPACE: dict[str, Any] = {
    "tenant": "acme",
    "workspace": "ads",
    "state": "postgresql+psycopg://user@host/db",
    "lake": "./lake",
    "customers": [{"id": "1000000001"}],
    "sources": {"demo": {"kind": "demo"}},
    "queries": {
        "campaign_daily": {
            "source": "demo",
            "fields": [{"name": "campaign_id", "type": "long"}, {"name": "country", "type": "string"}],
        },
        "daily": {"source": "demo", "fields": [{"name": "clicks", "type": "long"}]},
    },
    "models": {"daily_spend": {"depends_on": ["demo.campaign_daily"]}},
    "alerts": {"channels": {"ops": {"webhook": "https://hooks.example.com/"}}, "rules": [{"rule": "terminal"}]},
}
ENVIRONMENT = {
    "OPENLINEAGE_API_KEY": "secret",
    "OIDC_CLIENT_SECRET": "secret",
    "HOOK_URL": "https://hooks.example.com/",
    "HOOK_SECRET": "secret",
    "SLACK_URL": "json://hooks.example.com",
}


@pytest.mark.parametrize(
    "section",
    [*SECTIONS, *(section for _, section in SOURCE_SECTIONS)],
    ids=lambda section: f"{section.model.__name__}",
)
def test_every_key_of_the_workspace_file_is_documented(section: Section) -> None:
    assert section.undocumented() == []
    assert all(doc.meaning and doc.example for doc in section.documentation.values())


def test_every_class_of_the_workspace_file_is_on_the_page() -> None:
    """A class that no key of Settings leads to would not be noticed by the test above."""
    titles = " ".join(section.title for section in SECTIONS)
    for place in ("Top level", "`state`", "`customers[]`", "`sources.<name>`", "`queries.<name>.fields[]`"):
        assert place in titles
    assert {str(section.model.model_fields["kind"].default) for section in CHECKS} == set(CHECK_KEYS)
    beside = set.intersection(*(set(section.model.model_fields) - set(section.documentation) for section in CHECKS))
    assert beside - {"kind"} == set(BESIDE_KEYS)


def places(section: Section) -> list[str]:
    """The places in the file of the keys of a section."""
    return [] if section.title == "Top level" else re.findall(r"`([^`]+)`", section.title)


EXAMPLES = [
    (place, key, doc)
    for section in SECTIONS
    if not section.meaning
    for place in places(section) or [""]
    for key, doc in section.documentation.items()
]


@pytest.mark.parametrize(("place", "key", "doc"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_example_of_a_key_is_valid(place: str, key: str, doc: KeyDoc, tmp_path: Path) -> None:
    document = yaml.safe_load(yaml.safe_dump(WORKSPACE))
    (tmp_path / "customers.csv").write_text("id\n1000000001\n")
    (tmp_path / "queries.yaml").write_text("queries: {}\n")
    target = document
    for step in place.split(".") if place else ():
        if step == "<name>":
            target = next(iter(target.values()))
        elif step == "state":
            document["state"] = target = {"url": document["state"]}
        else:
            target = target.setdefault(step.removesuffix("[]"), {})
        if isinstance(target, list):
            target = target[-1]
    target |= ALONGSIDE.get(f"{place}.{key}", {})
    value = yaml.safe_load(doc.example)
    if key in ("sources", "queries", "models"):
        target[key] |= value
    else:
        target[key] = value
    (tmp_path / "penstock.yaml").write_text(yaml.safe_dump(document))
    assert load_settings(tmp_path, ENVIRONMENT, hooks_of).tenant == "acme"


@pytest.mark.parametrize("section", CHECKS, ids=lambda section: section.title)
def test_the_example_of_a_check_is_valid(section: Section) -> None:
    assert isinstance(check_from_mapping(yaml.safe_load(check_example(section))), section.model)


def test_every_source_is_on_the_page() -> None:
    assert {entry.name for entry in entry_points(group="penstock.sources")} == set(SOURCES)
    documented = {section.model for _, section in SOURCE_SECTIONS}
    assert {model for model in subclasses(Options) if not model.__name__.startswith("_")} <= documented


def subclasses(model: type[Options]) -> Iterator[type[Options]]:
    for derived in model.__subclasses__():
        if derived.__module__.startswith("penstock."):
            yield derived
            yield from subclasses(derived)


@pytest.mark.parametrize(
    ("section", "key"),
    [(section, key) for _, section in SOURCE_SECTIONS for key in section.documentation],
    ids=lambda value: value if isinstance(value, str) else value.model.__name__,
)
def test_the_example_of_an_option_is_valid(section: Section, key: str) -> None:
    examples = {
        name: yaml.safe_load(re.sub(r"\$\{\w+:-(.*?)\}", r"\1", doc.example))
        for name, doc in section.documentation.items()
    }
    required = {name for name, field in section.model.model_fields.items() if field.is_required()}
    together = {key, *required, *NEEDS.get((section.model, key), ())}
    read_options(section.model, {name: examples[name] for name in together})


@pytest.mark.parametrize("error", catalogue(), ids=lambda error: error.__name__)
def test_every_error_class_says_what_it_means_and_what_to_do(error: type[PenstockError]) -> None:
    assert vars(error).get("__doc__"), "the docstring is its meaning in docs/reference/errors.md"
    assert vars(error).get("remedy"), "the remedy is what to do in docs/reference/errors.md"


def test_every_remedy_names_commands_that_exist() -> None:
    named = {command for error in catalogue() for command in re.findall(r"`penstock ([^`]+)`", error.remedy)}
    assert len(named) >= 8
    for command in named:
        group: Any = typer.main.get_command(app)
        for word in command.split():
            if not hasattr(group, "commands"):
                break
            assert word in group.commands, f"penstock {command}"
            group = group.commands[word]
        options = {option for parameter in group.params for option in parameter.opts}
        assert {word for word in command.split() if word.startswith("--")} <= options, f"penstock {command}"


def test_the_tests_notice_a_key_without_documentation() -> None:
    class Undocumented(Declared):
        key: str

    assert Section("x", "", Undocumented, Undocumented.documentation).undocumented() == ["key"]

"""Checks of `penstock doctor` on sources, expressions and roles, without Spark. Each raises the error to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.app import Workspace
    from penstock.config.assets import Query
    from penstock.config.checks import Check
    from penstock.config.settings import SourceSettings
    from penstock.source.protocol import Source

SECONDS = 3.0  # timeout of a connection to a source
_NAMED = 5


def source_kinds(ws: Workspace) -> str:
    """Check the kinds, options and queries of all sources. Raises ConfigError with every mistake. The result also names
    APIs that end soon."""
    from penstock.control.api_sunset import ending_apis
    from penstock.source.registry import hooks_of

    run_all(lambda settings=settings: _refuse(ws, settings) for settings in ws.settings.sources.values())  # type: ignore[misc]
    today = ws.context.now().date()
    ends = ending_apis(ws.settings.sources.values(), hooks_of, today)
    kinds = ", ".join(f"{name} ({settings.kind})" for name, settings in ws.settings.sources.items())
    return "; warning: ".join([kinds, *(end.describe(today) for end in ends)])


def source_places(ws: Workspace) -> str:
    """Check that folders exist and addresses respond. Raises ConfigError, also for sources whose settings are wrong."""
    from penstock.source.protocol import Probed
    from penstock.source.registry import reads_places

    probed = []
    problems = []
    for name, settings in ws.settings.sources.items():
        try:
            if not reads_places(settings):
                continue
            source = _made(settings)
        except PenstockError:
            problems.append(f"sources.{name}: not tried, because its settings are wrong: see `sources` above")
            continue
        if isinstance(source, Probed):
            probed.append(name)
            queries = ws.settings.queries_of(name)
            refused = _refused(source, queries)
            sound = [query for query in queries if query.name not in refused]
            problems += [f"sources.{name}: {text}" for text in source.probe(sound, SECONDS)]
            problems += [
                f"queries.{one}: not tried, because its options are wrong: see `sources` above" for one in refused
            ]
    if problems:
        raise ConfigError("; ".join(dict.fromkeys(problems)))
    return f"{', '.join(probed)}: can be reached" if probed else "no source reads folders or addresses"


def check_expressions(ws: Workspace) -> str:
    """Check that expressions can be parsed, name fields of their query, and can be boolean. Only a run can check the
    types inside them and the columns of models."""
    from penstock.contract.contract import Contract

    problems = []
    for query in ws.settings.queries.values():
        fields = {field.name: str(field.type) for field in Contract.of(query).columns}
        problems += _expression_problems(f"queries.{query.name}", query.checks, fields)
    for model in ws.settings.models.values():
        problems += _expression_problems(f"models.{model.name}", model.checks, None)
    if problems:
        raise ConfigError("; ".join(problems))
    return "every expression can be parsed, names fields of its query, and can be boolean"


def roles(ws: Workspace) -> str:
    """Check on PostgreSQL that the roles of `db roles` are complete, with the rights of this release."""
    if ws.context.database.dialect != "postgresql":
        return "not applicable: SQLite has no roles; every user who can open the file has all rights"
    from penstock.db.role_check import role_prefixes, role_problems

    ws.context.require_schema()
    prefixes = role_prefixes(ws.context.database)
    if not prefixes:
        return "none: every login uses its own rights; `penstock db roles` creates a role for each actor"
    for prefix in prefixes:
        if problems := role_problems(ws.context.database, prefix):
            few = "; ".join(problems[:_NAMED]) + (f"; and {len(problems) - _NAMED} more" if problems[_NAMED:] else "")
            raise ConfigError(f"{few}: run `penstock db roles --prefix {prefix}` as the owner of the tables")
    return f"{', '.join(f'{prefix}_*' for prefix in prefixes)}: complete, with the rights of this release"


def run_all(checks: Iterator[Callable[[], object]]) -> None:
    """Run all checks. Raises one ConfigError with the mistakes of all."""
    mistakes = []
    for check in checks:
        try:
            check()
        except PenstockError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("; ".join(mistakes))


def _refuse(ws: Workspace, settings: SourceSettings) -> None:
    if refused := _refused(_made(settings), ws.settings.queries_of(settings.name)):
        raise ConfigError("; ".join(refused.values()))


def _made(settings: SourceSettings) -> Source:
    from penstock.partition import new_run_id
    from penstock.source.protocol import RunContext
    from penstock.source.registry import make_source

    return make_source(settings, RunContext(new_run_id()))


def _refused(source: Source, queries: Sequence[Query]) -> dict[str, str]:
    """Return the queries that the source cannot fetch, with the reason."""
    from penstock.source.registry import refuse_queries

    found = {}
    for query in queries:
        try:
            refuse_queries(source, [query])
        except PenstockError as error:
            found[query.name] = str(error)
    return found


def _expression_problems(place: str, checks: Sequence[Check], fields: Mapping[str, str] | None) -> list[str]:
    from penstock.config.checks import Expression
    from penstock.sql_guard import expression_problems

    return [
        f"{place}: the expression {check.expression!r} {problem}"
        for check in checks
        if isinstance(check, Expression)
        for problem in expression_problems(check.expression, fields)
    ]

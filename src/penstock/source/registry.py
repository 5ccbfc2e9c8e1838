"""Finds the class of a source by the `kind` in the workspace file: the name of an entry point, or `module:Class`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from penstock.config.assets import Query
from penstock.config.settings import SourceSettings
from penstock.config.source_hooks import SourceHooks
from penstock.config.values import Keeps
from penstock.errors import ConfigError
from penstock.source.protocol import Lister, Probed, RunContext, Source

GROUP = "penstock.sources"

# Built-in kinds are found without package metadata too: on a cluster the package arrives as a zip without it.
_OWN = {
    "demo": EntryPoint("demo", "penstock.source.demo:DemoSource", GROUP),
    "files": EntryPoint("files", "penstock.source.files:FilesSource", GROUP),
    "http": EntryPoint("http", "penstock.source.http:HttpSource", GROUP),
    "sql": EntryPoint("sql", "penstock.source.sql:SqlSource", GROUP),
    "google_ads": EntryPoint("google_ads", "penstock.source.google_ads.source:GoogleAdsSource", GROUP),
}


def make_source(settings: SourceSettings, context: RunContext) -> Source:
    """The source that `settings` describes, ready to extract."""
    kind = _kind(settings)
    try:
        return kind(settings.options, context)
    except ConfigError as error:
        raise ConfigError(f"sources.{settings.name}: {error}") from error


def lists_accounts(settings: SourceSettings) -> bool:
    """True if the source can list its customers."""
    return issubclass(_kind(settings), Lister)


def reads_places(settings: SourceSettings) -> bool:
    """True if the source can check its folders or addresses. Raises ConfigError for an unknown kind."""
    return issubclass(_kind(settings), Probed)


def _kind(settings: SourceSettings) -> type[Source]:
    try:
        return _load(settings.kind)
    except ConfigError as error:
        raise ConfigError(f"sources.{settings.name}: {error}") from error


def _load(kind: str) -> type[Source]:
    found = _OWN | {point.name: point for point in entry_points(group=GROUP)}
    if ":" in kind:
        found[kind] = EntryPoint(kind, kind, GROUP)
    if kind not in found:
        raise ConfigError(
            f"there is no source of kind {kind!r} (installed: {', '.join(sorted(found))});"
            " a class of your own is written module:Class"
        )
    try:
        loaded: type[Source] = found[kind].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"kind {kind!r} cannot be loaded: {error}") from error
    return loaded


@cache
def hooks_of(kind: str) -> SourceHooks:
    """The hooks of a kind of source. A class that cannot be imported has none: commands that only read state work
    without it, and a run reports it."""
    try:
        found = _load(kind)
    except Exception:  # noqa: BLE001 - the module of a source is not our code, and may fail in any way
        return SourceHooks()
    return SourceHooks(
        getattr(found, "title", ""),
        getattr(found, "keeps", Keeps()),
        getattr(found, "normalise_customer", None),
        getattr(found, "requests_in_flight", None),
        getattr(found, "asks_by_day", None),
        getattr(found, "api_end", None),
    )


def normalise_customer(text: str) -> str:
    """The id as partition keys have it, for a filter that does not name a source: the first built-in kind whose hook
    accepts the id decides."""
    if text.isalnum():  # no kind spells such ids in two ways
        return text
    for hook in (hooks_of(kind).normalise_customer for kind in _OWN):
        if hook is not None:
            try:
                return hook(text)
            except ValueError:
                continue
    return text


def refuse_queries(source: Source, queries: Iterable[Query]) -> None:
    """Raise ConfigError if the source has a method `refuse` and it refuses a query."""
    refuse = getattr(source, "refuse", None)
    if refuse is None:
        return
    for query in queries:
        try:
            refuse(query)
        except ConfigError as error:
            raise ConfigError(f"queries.{query.name}.options: {error}") from error

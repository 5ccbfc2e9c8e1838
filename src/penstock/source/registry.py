"""Finding a source's class by the `kind` in the workspace file: its entry point's name, or `module:Class`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from penstock.config.assets import Query
from penstock.config.settings import SourceSettings
from penstock.errors import ConfigError
from penstock.source.protocol import Lister, Probed, RunContext, Source

GROUP = "penstock.sources"

# Our own kinds are found without installation too: on a cluster the package arrives as a zip, without its metadata.
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
    """Whether the source can say which customers it serves."""
    return issubclass(_kind(settings), Lister)


def reads_places(settings: SourceSettings) -> bool:
    """Whether the source reads folders or addresses that can be probed. Raises ConfigError for an unknown kind."""
    return issubclass(_kind(settings), Probed)


def _kind(settings: SourceSettings) -> type[Source]:
    found = _OWN | {point.name: point for point in entry_points(group=GROUP)}
    if ":" in settings.kind:
        found[settings.kind] = EntryPoint(settings.kind, settings.kind, GROUP)
    if settings.kind not in found:
        raise ConfigError(
            f"sources.{settings.name}: there is no source of kind {settings.kind!r}"
            f" (installed: {', '.join(sorted(found))}); a class of your own is written module:Class"
        )
    try:
        kind: type[Source] = found[settings.kind].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"sources.{settings.name}: kind {settings.kind!r} cannot be loaded: {error}") from error
    return kind


def refuse_queries(source: Source, queries: Iterable[Query]) -> None:
    """Let the source look at its queries, if it does that, before anything is issued for them."""
    refuse = getattr(source, "refuse", None)
    if refuse is None:
        return
    for query in queries:
        try:
            refuse(query)
        except ConfigError as error:
            raise ConfigError(f"queries.{query.name}.options: {error}") from error

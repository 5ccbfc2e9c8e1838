"""`penstock spark`: how fast Spark starts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import show
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.pipeline.class_data_sharing import ClassArchive

spark = typer.Typer(no_args_is_help=True, help="How fast Spark starts on this machine.")

_ASSET = "demo.campaign_daily"


def register(app: typer.Typer) -> None:
    app.add_typer(spark, name="spark")


@spark.command()
def prepare(
    again: Annotated[bool, typer.Option("--again", help="Create the file again, even if it exists.")] = False,
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Keep Spark's classes ready in a file, so that every command that needs Spark starts seconds earlier. *

    Takes about half a minute and 200 MB, once for each Java and each Spark; nothing else changes. The file lies in the
    virtual environment, or without one in ~/.cache/penstock, and may be deleted at any time. Only drivers on this
    machine use it (spark.master: local); those of a cluster start as they always do.
    """
    from penstock import interrupts
    from penstock.pipeline.session import archive_of_classes

    interrupts.begin_work()
    archive = archive_of_classes()
    if archive is None:
        raise ConfigError("this Java and this Spark cannot keep classes ready: it takes a whole OpenJDK, 17 or newer")
    made = again or not archive.exists
    if made:
        _make(archive)
    document: dict[str, Any] = {"file": str(archive.path), "bytes": archive.path.stat().st_size, "made": made}

    def draw(console: Any) -> None:
        told = "keeps Spark's classes ready" if made else "exists already (--again creates it again)"
        console.print(f"{archive.path}, {document['bytes'] / 1e6:,.0f} MB, {told}", soft_wrap=True)

    show(document, as_json, draw)


def _make(archive: ClassArchive) -> None:
    """Do once what a JVM is going to do later, and let it write down at its end what it needed for that."""
    from pyspark import SparkContext

    from penstock.cli.init import write_workspace
    from penstock.config.settings import SparkSettings
    from penstock.control.select import Selection
    from penstock.pipeline.session import JVM_OPTIONS, start_session

    with TemporaryDirectory(prefix="penstock-") as folder, RunProgress() as watcher:
        ws = write_workspace(Path(folder), customers=2, days=3)
        session = start_session(SparkSettings(config={JVM_OPTIONS: archive.write_options()}))
        gateway = SparkContext._gateway
        assert gateway is not None  # it was started right now
        try:
            ws.runs.start(Selection(), watcher=watcher, spark=session)
            ws.data.vouched(_ASSET).spark(session).collect()
            session.stop()
            watcher.say("the JVM writes down its classes")
            archive.keep(gateway.proc)
        finally:
            archive.discard(gateway.proc)
            ws.database.close()

"""`penstock spark`: the class archive that shortens the start of Spark."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import show
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.pipeline.class_data_sharing import ClassArchive

spark = typer.Typer(no_args_is_help=True, help="A faster start of Spark on this machine.")

_ASSET = "demo.campaign_daily"


def register(app: typer.Typer) -> None:
    app.add_typer(spark, name="spark")


@spark.command()
def prepare(
    again: Annotated[bool, typer.Option("--again", help="Create the archive again, even if it exists.")] = False,
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create a class archive (class data sharing), so that commands that need Spark start seconds earlier. *

    Takes about half a minute and 200 MB, once for each version of Java and Spark; nothing else changes. The archive is
    in the virtual environment, or without one in ~/.cache/penstock, and may be deleted at any time. Only drivers on
    this machine use it (spark.master: local), not the drivers of a cluster.
    """
    from penstock import interrupts
    from penstock.pipeline.jvm import archive_of_classes
    from penstock.views.installation import class_archive_document

    interrupts.begin_work()
    archive = archive_of_classes()
    if archive is None:
        raise ConfigError(
            "Spark cannot create a class archive with this Java: it needs a complete OpenJDK, 17 or newer"
        )
    is_new = again or not archive.exists
    if is_new:
        _create(archive)
    document = class_archive_document(archive.path, is_new=is_new)

    def draw(console: Console) -> None:
        result = "keeps Spark's classes ready" if is_new else "exists already (--again creates it again)"
        console.print(f"{archive.path}, {document['bytes'] / 1e6:,.0f} MB, {result}", soft_wrap=True)

    show(document, as_json, draw)


def _create(archive: ClassArchive) -> None:
    """Run a small pipeline in a JVM that writes the classes it loaded to the archive at its end."""
    from pyspark import SparkContext

    from penstock.cli.init import write_workspace
    from penstock.config.settings import SparkSettings
    from penstock.control.select import Selection
    from penstock.pipeline.session import start_session
    from penstock.pipeline.session_config import JVM_OPTIONS

    with TemporaryDirectory(prefix="penstock-") as folder, RunProgress() as listener:
        ws = write_workspace(Path(folder), customers=2, days=3)
        session = start_session(SparkSettings(config={JVM_OPTIONS: archive.write_options()}))
        gateway = SparkContext._gateway
        assert gateway is not None  # it was started right now
        try:
            ws.runs.start(Selection(), listener=listener, spark=session)
            ws.data.vouched(_ASSET).spark(session).collect()
            session.stop()
            listener.say("the JVM writes the class archive")
            archive.keep(gateway.proc)
        finally:
            archive.discard(gateway.proc)
            ws.context.database.close()

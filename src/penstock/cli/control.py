"""`penstock control ...`: the loop that keeps everything going, and the breakers of sources."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import interrupts
from penstock.cli import completion
from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import listing, note, show, show_line
from penstock.cli.run import waiting_lines
from penstock.cli.text_tables import table
from penstock.errors import UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.app import Workspace

control = typer.Typer(no_args_is_help=True, help="The control loop: retries, restatement, backfills, rescue.")


def register(app: typer.Typer) -> None:
    app.add_typer(control, name="control")


@control.command()
def tick(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """One round: close the attempts of dead workers, decide about retries, publish what waits, issue, run, publish. *

    Good for cron. Exit code 0 also when partitions failed: they are retried by policy, see `penstock failed`.
    """
    from penstock.app import open_workspace
    from penstock.control.select import Selection
    from penstock.flow.heartbeat import Heartbeat
    from penstock.state.worker import WorkerStore

    ws = open_workspace(workspace)
    stop = _stop_on_signals()
    with Heartbeat(WorkerStore(ws.database, ws.now)) as heart, RunProgress() as progress:
        facts = dict(ws.tick(_session(ws), heart.token, progress, stop.is_set))
    if not facts["planned"]:
        facts["held_up"] = ws.held_up(Selection()) | {"model_inputs": facts["model_inputs"]}
    show(facts, as_json, lambda console: console.print(_in_words(facts)))


@control.command()
def serve(
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, max=1_000_000_000, help="Stop after so many rounds.")
    ] = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document for each round, a line each, on stdout.")
    ] = False,
    debug: opt.Debug = False,
) -> None:
    """Round after round with one warm Spark session, until SIGTERM or Ctrl-C. *

    Logs one JSON line per event to stderr; --json also prints the facts of each round to stdout, as `control tick`
    does. After a signal it issues nothing more, finishes its open work and exits with 0. It waits for a database that
    does not answer. Several of these may work on one database.
    """
    from penstock.app import open_workspace
    from penstock.control.serve import serve as loop
    from penstock.flow.heartbeat import Heartbeat
    from penstock.state.worker import WorkerStore

    ws = open_workspace(workspace)
    stop = _stop_on_signals()
    session = _session(ws)

    def round_() -> Mapping[str, Any]:
        facts = ws.tick(session, heart.token, _Quiet(), stop.is_set)
        if as_json:
            show_line(facts)
        return facts

    with Heartbeat(WorkerStore(ws.database, ws.now)) as heart:
        _log("started", {"worker": heart.token, "every_seconds": ws.settings.control.every.total_seconds()})
        loop(
            round_,
            ws.settings.control.every,
            stop,
            _log,
            rounds,
        )
        _log("stopped", {"worker": heart.token})


@control.command()
def breakers(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """Sources that refuse to work, and since when; nothing is issued for them but probes."""
    from dataclasses import asdict

    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    found = ws.breakers.all()
    items = [{**asdict(breaker), "open": breaker.opened_at is not None} for breaker in found]

    def draw(console: Console) -> None:
        rows = [
            (b.source, "open" if b.opened_at else "closed", b.opened_at, b.probe_at, b.not_before, b.error_message)
            for b in found
        ]
        columns = ("source", "breaker", "since (UTC)", "next probe", "pause until", "why")
        console.print(table(None, columns, rows) if rows else "no source is in trouble")

    show(listing(items, len(items)), as_json, draw)


@control.command("close-breaker")
def close_breaker(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="The source to issue attempts for again.", autocompletion=completion.sources
        ),
    ],
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Issue attempts for a source again, without waiting for a probe."""
    from penstock.app import open_workspace, os_user
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry
    from penstock.state.records import Breaker

    ws = open_workspace(workspace)
    if source not in ws.settings.sources:
        raise UsageError(f"unknown source {source} (known: {', '.join(ws.settings.sources)})")
    entry = AuditEntry(actor or os_user(), AuditedAct.CLOSE_BREAKER, {"source": source}, {})
    is_open = ws.breakers.get(source) != Breaker(source)
    closed = not dry_run and ws.breakers.close(source, entry)
    words = f"the breaker of {source} was not open"
    if dry_run and is_open:
        words = f"the breaker of {source} would be closed"
    elif closed:
        words = f"the breaker of {source} is closed"
    document = {"source": source, "changed": int(closed), "dry_run": dry_run}
    show(document, as_json, lambda console: console.print(words))


class _Quiet:
    """The loop tells its rounds as log lines, not as bars."""

    def stage(self, name: str, partitions: int) -> Callable[[float], None]:
        began = datetime.now(UTC)

        def report(share: float) -> None:
            if share == 1.0:
                seconds = round((datetime.now(UTC) - began).total_seconds(), 3)
                _log("stage.finished", {"stage": name, "partitions": partitions, "seconds": seconds})

        return report

    def say(self, message: str) -> None:
        _log("note", {"message": message})


def _session(ws: Workspace) -> Callable[[], SparkSession]:
    def session() -> SparkSession:
        from penstock.pipeline.session import start_session

        return start_session(ws.settings.spark)  # the same one when asked again

    return session


def _stop_on_signals() -> threading.Event:
    """The first signal asks to stop after what is being worked on; a second Ctrl-C interrupts that, too."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            interrupts.interrupt(number, frame)
        stop.set()
        note("penstock: stopping after what is being worked on")

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop


def _log(event: str, facts: Mapping[str, Any]) -> None:
    import orjson

    line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
    sys.stderr.write(orjson.dumps(line).decode() + "\n")
    sys.stderr.flush()


def _in_words(facts: Mapping[str, Any]) -> str:
    trouble = "".join(f"\n{line}" for line in (*facts.get("troubles", ()), *facts.get("unfinished", ())))
    if not facts["planned"]:
        loaded = facts.get("loaded", 0)
        published = f"; loaded {counted(loaded)} that waited for publication" if loaded else ""
        waiting = "".join(f"\n{line}" for line in waiting_lines(facts.get("held_up", {})))
        return f"nothing is due{published}{waiting}{trouble}"
    words = ", ".join(f"{facts[name]:,} {name}" for name in ("planned", "accepted", "rejected", "loaded"))
    return f"{words}; {counted(facts['waiting'], 'waits', 'wait')} for the next round{trouble}"

"""`penstock control ...`: the control loop, and the circuit breakers and request quotas of sources."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import interrupts
from penstock.cli import completion
from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import note, show, show_line
from penstock.cli.run_summary import waiting_lines
from penstock.cli.text_tables import table
from penstock.log_fields import log_fields
from penstock.observe import logs
from penstock.observe.progress import LogListener
from penstock.plural import counted

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.flow.listener import ProgressListener

log = logging.getLogger(__name__)

control = typer.Typer(no_args_is_help=True, help="The control loop: schedule, retries, restatement, backfills.")


def register(app: typer.Typer) -> None:
    app.add_typer(control, name="control")


@control.command()
def tick(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """Run one round: close the attempts of dead workers, decide about retries, issue attempts, run and publish. *

    Executes the orders of the API first, and evaluates alerts last. Suitable for cron. Exit code 0 even if partitions
    failed: the policy retries them, see `penstock failed`.
    """
    from penstock.app import open_workspace
    from penstock.app.alert_loop import run_once
    from penstock.control.select import Selection
    from penstock.flow.heartbeat import Heartbeat
    from penstock.views.runs import round_document

    ws = open_workspace(workspace)
    ws.alerts.check()
    stop, service = _stop_on_signals(), ws.rounds
    with Heartbeat(ws.context.workers, control_loop=True) as heart, RunProgress() as progress:
        try:
            _execute_orders(ws, heart.token, progress, stop)
            facts = service.tick(_session(ws), heart.token, progress, stop.is_set)
        finally:
            run_once(ws.alerts, heart.token)
    held_up = None if facts["planned"] else ws.partitions.held_up(Selection()) | {"model_inputs": facts["model_inputs"]}
    document = round_document(facts, held_up)
    show(document, as_json, lambda console: console.print(_describe(document)))


@control.command()
def serve(
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, max=1_000_000_000, help="Stop after this many rounds.")
    ] = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per round on stdout, one per line.")
    ] = False,
    debug: opt.Debug = False,
) -> None:
    """Run rounds with one Spark session until SIGTERM or Ctrl-C. *

    Executes the orders of the API, each exactly once, before a round and between rounds. Logs one line per event to
    stderr, as JSON without a terminal; --json also prints the result of each round to stdout, as `control tick` does.
    After a signal it issues no more attempts, finishes its open work and exits with 0. It waits while the database does
    not respond. Several processes may serve one database; one of them evaluates alerts, at the interval of the
    workspace file.
    """
    from penstock.app import open_workspace
    from penstock.app.alert_loop import AlertLoop
    from penstock.control.serve import serve as loop
    from penstock.flow.heartbeat import Heartbeat
    from penstock.views.runs import round_document

    ws = open_workspace(workspace)
    ws.alerts.check()
    stop, service = _stop_on_signals(), ws.rounds

    def round_() -> Mapping[str, Any]:
        _execute_orders(ws, heart.token, LogListener(), stop)
        facts = service.tick(_session(ws), heart.token, LogListener(), stop.is_set)
        if as_json:
            show_line(round_document(facts))
        return facts

    every = ws.settings.control.every
    with Heartbeat(ws.context.workers, control_loop=True) as heart, log_fields(worker=heart.token):
        log.info("started", extra={"facts": {"every_seconds": every.total_seconds()}})
        with AlertLoop(ws.alerts, heart.token):
            loop(round_, every, stop, rounds, lambda: ws.orders.is_waiting(heart.token))
        log.info("stopped")


@control.command()
def breakers(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """List the circuit breakers of sources. An open breaker allows only probes of its source."""
    from penstock.app import open_workspace
    from penstock.views.operations import breakers_document

    ws = open_workspace(workspace)
    found = ws.context.breakers.all()

    def draw(console: Console) -> None:
        rows = [
            (b.source, "open" if b.opened_at else "closed", b.opened_at, b.probe_at, b.not_before, b.error_message)
            for b in found
        ]
        columns = ("source", "breaker", "since (UTC)", "next probe", "pause until", "why")
        console.print(table(None, columns, rows) if rows else "no source is blocked")

    show(breakers_document(found), as_json, draw)


@control.command()
def quota(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """List the request limits of sources: what is claimed, used and left of each window, and who shares a rate.

    Limits by hour and day are counted in windows of UTC, by the clock of the state database. `claimed` includes the
    used requests. The reserve is not used for backfills and history. Limits by second and minute are shared among the
    processes that fetch.
    """
    from penstock.app import open_workspace
    from penstock.views.quota import quota_document

    ws = open_workspace(workspace)
    sources = ws.settings.sources.values()
    shares = {source.name: ws.quotas.shares(source.name) for source in sources if source.pace is not None}
    document = quota_document(sources, ws.quotas.sources(), shares, ws.settings.control.quota_reserve)

    def draw(console: Console) -> None:
        rows = [
            (
                *(item[name] for name in ("source", "window", "budget", "claimed", "used", "left", "reserve")),
                item["renews_at"],
                ", ".join(f"{one['per_second']:g}/s {one['host']} {one['process']}" for one in item["shares"]),
            )
            for item in document["items"]
        ]
        columns = (
            "source", "window", "budget", "claimed", "used", "left", "reserve", "renews (UTC)", "shares",
        )  # fmt: skip
        console.print(table(None, columns, rows) if rows else "no source has a rate")

    show(document, as_json, draw)


@control.command("close-breaker")
def close_breaker(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="The source whose breaker to close.", autocompletion=completion.sources),
    ],
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Close the breaker of a source: issue attempts for it again without waiting for a probe."""
    from penstock.app import open_workspace
    from penstock.views.operations import close_breaker_document

    ws = open_workspace(workspace)
    changes = ws.operations.close_breaker(source, actor=actor, dry_run=dry_run)
    message = f"the breaker of {source} was not open"
    if changes:
        message = f"the breaker of {source} {'would be' if dry_run else 'is'} closed"
    document = close_breaker_document(source, changed=changes and not dry_run, dry_run=dry_run)
    show(document, as_json, lambda console: console.print(message))


def _execute_orders(ws: Workspace, worker_token: str, listener: ProgressListener, stop: threading.Event) -> None:
    """Execute the orders that wait, oldest first, until none is left or the process stops. An order whose work failed
    with an error that may pass has a pause and does not block the others."""
    while not stop.is_set():
        done = ws.orders.execute_next(worker_token, listener, stop.is_set)
        if done is None:
            return
        if done.finished_at is None:  # put back, or taken by another loop
            continue
        facts = {"order_id": done.order_id, "kind": done.kind, "state": done.state, "run_id": done.run_id}
        facts |= {"error": done.error_message} if done.error_message else {}
        log.info("order.executed", extra={"facts": facts})


def _session(ws: Workspace) -> Callable[[], SparkSession]:
    return partial(ws.context.session, fetches=True)  # returns the same session each time


def _stop_on_signals() -> threading.Event:
    """Return an event that the first signal sets, to stop after the open work. A second signal interrupts the work."""
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            interrupts.interrupt(number, frame)
        stop.set()
        # In another thread: the signal may have come while this one writes a line.
        threading.Thread(target=_note_stop, name="signal").start()

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    return stop


def _note_stop() -> None:
    if logs.writes_json():
        log.info("stopping")
    else:
        note("penstock: stopping after the open work")


def _describe(facts: Mapping[str, Any]) -> str:
    problems = "".join(f"\n{line}" for line in (*facts.get("troubles", ()), *facts.get("unfinished", ())))
    if not facts["planned"]:
        loaded = facts.get("loaded", 0)
        published = f"; loaded {counted(loaded)} that waited for publication" if loaded else ""
        waiting = "".join(f"\n{line}" for line in waiting_lines(facts.get("held_up", {})))
        return f"nothing is due{published}{waiting}{problems}"
    counts = ", ".join(f"{facts[name]:,} {name}" for name in ("planned", "accepted", "rejected", "loaded"))
    return f"{counts}; {counted(facts['waiting'], 'waits', 'wait')} for the next round{problems}"

"""OpenTelemetry spans of runs: few of them, findable by run, and none without a provider."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.control.select import Selection
from penstock.flow.trace import trace_id_of
from penstock.observe.logs import JsonFormatter
from penstock.observe.tracing import tracer
from penstock.redaction import SECRETS
from support.cli import in_process, penstock
from support.workspaces import customer_id, key, open_at, run, write_workspace

FEW = 32
RUN = {"penstock.run": 1, "penstock.batch": 3, "penstock.stage": 4, "penstock.publish": 1}
PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

provider = TracerProvider()
line = lambda span: span.to_json(indent=None) + "\\n"
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=open({file!r}, "a"), formatter=line)))
trace.set_tracer_provider(provider)
"""


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Receives the spans of this process during a test. A process can set its provider only once."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    return found


def names(spans: tuple[ReadableSpan, ...]) -> Counter[str]:
    return Counter(span.name for span in spans)


def by_name(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_run_has_a_span_for_each_batch_stage_and_publication(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    faults = [{"fault": "wrong_type", "customer": customer_id(1), "date": "2024-06-10"}]
    ws = open_at(write_workspace(tmp_path, faults=faults, driver_partitions=FEW))
    summary = run(ws, None)
    spans = exporter.get_finished_spans()
    assert names(spans) == RUN
    [whole] = by_name(exporter, "penstock.run")
    assert whole.attributes is not None
    assert whole.attributes["penstock.run_id"] == summary.run_id
    counts = {name: whole.attributes[f"penstock.{name}"] for name in ("partitions", "accepted", "rejected", "end")}
    assert counts == {"partitions": 2, "accepted": 1, "rejected": 1, "end": "done"}
    parents = {span.context.span_id: span.name for span in spans if span.context}
    inside = {(span.name, parents[span.parent.span_id]) for span in spans if span.parent}
    assert inside == {
        ("penstock.batch", "penstock.run"),
        ("penstock.stage", "penstock.batch"),
        ("penstock.publish", "penstock.stage"),
    }
    stages = [span.attributes["penstock.stage"] for span in by_name(exporter, "penstock.stage") if span.attributes]
    assert sorted(map(str, stages)) == ["extract", "judge", "load", "validate"]


def test_the_number_of_spans_and_attributes_does_not_depend_on_partitions(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    run(open_at(write_workspace(tmp_path, customers=12, driver_partitions=FEW)), None)
    spans = exporter.get_finished_spans()
    assert names(spans) == RUN
    assert max(len(span.attributes or ()) for span in spans) < 20
    assert [span.name for span in spans if customer_id(1) in span.to_json()] == []


def test_the_trace_of_an_attempt_is_found_by_its_run(
    tmp_path: Path, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    caplog.handler.setFormatter(JsonFormatter())
    ws = open_at(write_workspace(tmp_path, driver_partitions=FEW))
    summary = run(ws, None)
    [whole] = by_name(exporter, "penstock.run")
    assert whole.context is not None
    trace_id = f"{whole.context.trace_id:032x}"
    assert ws.status.run_page(summary.run_id).trace_id == trace_id
    shown = in_process("runs", "show", summary.run_id, "--json", workspace=tmp_path).document
    assert shown["trace_id"] == trace_id
    attempts = in_process("state", "history", str(key(1)), "--json", workspace=tmp_path).document["items"]
    assert [attempt["trace_id"] for attempt in attempts] == [trace_id]
    lines = [json.loads(text) for text in caplog.text.splitlines()]
    mine = [line for line in lines if line.get("run_id") == summary.run_id]
    assert {line["event"] for line in mine} >= {"run.started", "run.finished"}
    assert {line.get("trace_id") for line in mine} == {trace_id}
    assert all(line["worker"] for line in mine)


def test_a_run_that_continues_another_is_linked_to_it(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    ws = open_at(write_workspace(tmp_path, driver_partitions=FEW))
    stopped = ws.runs.start(Selection(), actor="test", stopping=lambda: True)
    resumed = ws.runs.resume(stopped.run_id, actor="test")
    first, second = by_name(exporter, "penstock.run")
    assert (resumed.accepted, resumed.run_id == stopped.run_id) == (2, False)
    assert first.context is not None
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert first.links == ()
    assert second.attributes is not None
    assert second.attributes["penstock.resumes"] == stopped.run_id


def test_an_error_is_recorded_without_secrets(exporter: InMemorySpanExporter) -> None:
    SECRETS.remember("hunter2-hunter2")
    try:
        with pytest.raises(ValueError, match="hunter2"), tracer().span("penstock.run", {}):
            raise ValueError("no answer to hunter2-hunter2")
    finally:
        SECRETS.forget()
    [span] = exporter.get_finished_spans()
    assert (span.status.is_ok, span.status.description) == (False, "ValueError: no answer to ***")
    assert span.events == ()


def test_a_span_continues_the_trace_of_the_process_that_started_this_one(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    monkeypatch.setenv("TRACEPARENT", parent)
    with tracer().span("penstock.run", {}) as span, tracer().span("penstock.batch", {}):
        assert trace_id_of(span.traceparent) == "0af7651916cd43dd8448eb211c80319c"
    inner, outer = exporter.get_finished_spans()
    assert outer.parent is not None
    assert f"{outer.parent.span_id:016x}" == "b7ad6b7169203331"
    assert inner.parent == outer.context


@pytest.mark.parametrize(
    ("before", "imported"),
    [("", False), ("import opentelemetry.trace", True), ("import os; os.environ['TRACEPARENT'] = 'x'", False)],
)
def test_without_a_provider_nothing_is_traced_and_nothing_is_imported(before: str, imported: bool) -> None:
    program = (
        f"import sys\n{before}\n"
        "from penstock.flow.trace import NO_TRACES\n"
        "from penstock.observe.tracing import tracer\n"
        "one, two = tracer().span('a', {}), tracer().span('b', {})\n"
        "assert tracer() is NO_TRACES and one is two\n"
        "with one as span: assert span.traceparent is None\n"
        "print('opentelemetry' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stderr, done.stdout) == ("", f"{imported}\n")


def test_a_command_sends_its_spans_before_it_exits(tmp_path: Path) -> None:
    """A provider that the environment configures, as `opentelemetry-instrument` does."""
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    folder = write_workspace(tmp_path / "ws", query={"start_date": yesterday}, driver_partitions=FEW)
    assert in_process("db", "migrate", workspace=folder).code == 0
    (tmp_path / "site").mkdir()
    spans = tmp_path / "spans.jsonl"
    (tmp_path / "site" / "sitecustomize.py").write_text(PROVIDER.format(file=str(spans)))
    paths = ":".join([str(tmp_path / "site"), *sys.path])
    done = penstock("run", "--log-format", "json", workspace=folder, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    assert Counter(json.loads(line)["name"] for line in spans.read_text().splitlines()) == RUN
    assert {"run.started", "stage.finished", "run.finished"} <= {
        json.loads(line)["event"] for line in done.stderr.splitlines()
    }

"""OpenTelemetry traces: spans of runs, nodes, agents, model requests and tool calls.

Spans are built from the log when a run ends. So they are complete even after restarts, and a host
that does not export spans has no cost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from wopr.engine.state import NodeState, RunState
from wopr.process.background import BackgroundTask
from wopr.protocol.documents import UNSET
from wopr.protocol.events import RunEvent
from wopr.runs.journal import Commit
from wopr.security.redact import Redactor
from wopr.services.telemetry.genai_spans import (
    ERROR_TYPE,
    EVALUATION,
    OPERATION,
    SPAN_EVENT_TYPES,
    Attributes,
    RunSpans,
    SpanDraft,
)
from wopr.store.port import RunLog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

NANOS_PER_MILLI = 1_000_000
PAGE: Final = 500
# Runs that wait for their export. Further runs are not traced.
MAX_WAITING: Final = 10_000
_PROPAGATOR = TraceContextTextMapPropagator()
_EVENTS = msgspec.json.Decoder(RunEvent)

log = structlog.get_logger("wopr.tracing")


class Tracing:
    """Exports ended runs as traces. `redactor` keeps secrets out of names and attributes."""

    def __init__(
        self,
        store: RunLog,
        redactor: Redactor,
        processor: SpanProcessor | None = None,
        *,
        with_content: bool = False,
    ) -> None:
        self._with_content = with_content
        self._tracer: Tracer | None = None
        self._provider: TracerProvider | None = None
        self._store = store
        self._redactor = redactor
        self._waiting: deque[RunState] = deque()
        self.task = BackgroundTask("trace export", self._export_waiting)
        if processor is not None:
            # Imported only if spans are exported, because the SDK is slow to import.
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider

            resource = Resource.create({"service.name": "wopr"})
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(processor)
            self._tracer = self._provider.get_tracer("wopr")

    @classmethod
    def from_environment(
        cls, store: RunLog, redactor: Redactor, *, with_content: bool = False
    ) -> Tracing:
        """Export over OTLP if a standard environment variable sets an endpoint."""
        names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if not any(os.environ.get(name) for name in names):
            return cls(store, redactor)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        processor = BatchSpanProcessor(OTLPSpanExporter())
        return cls(store, redactor, processor, with_content=with_content)

    def handle_commit(self, commit: Commit) -> None:
        """Export the trace of a run that has ended with this commit."""
        state = commit.state
        if self._tracer is None or not state.is_terminal:
            return
        if len(self._waiting) >= MAX_WAITING:
            log.warning(
                "run not traced: too many runs wait for export", run_id=state.identity.run_id
            )
            return
        self._waiting.append(state)
        self.task.trigger()

    async def close(self) -> None:
        """Export the runs that wait, and send buffered spans."""
        await self._export_waiting()
        if self._provider is not None:
            self._provider.shutdown()

    async def _export_waiting(self) -> None:
        while self._waiting:
            # Removed after the export, so that `close` exports the run if the export is cancelled.
            state = self._waiting[0]
            try:
                found = await self._read(state)
                self._export(state, found)
            except Exception as error:  # the outer edge of a task
                log.error("run not traced", run_id=state.identity.run_id, exc_info=error)
            self._waiting.popleft()

    async def _read(self, state: RunState) -> RunSpans:
        found = RunSpans(with_content=self._with_content)
        fork = state.identity.fork
        # A replay does not call models or tools: the original run has these spans.
        is_replay = fork is not None and fork.mode == "replay"
        start = 0
        while not is_replay:
            page = await self._store.read(state.identity.tenant, state.identity.run_id, start, PAGE)
            if not page:
                break
            for event in page:
                if event.type in SPAN_EVENT_TYPES:
                    found.add(_EVENTS.decode(event.body))
            start = page[-1].sequence + 1
        cancelled = "cancelled" if state.status == "cancelled" else None
        found.finish(state.ended_at, cancelled if state.error is None else state.error.code)
        return found

    # Spans

    def _export(self, state: RunState, found: RunSpans) -> None:
        parent = state.traceparent
        context = _PROPAGATOR.extract({"traceparent": parent}) if parent else None
        run = self._start_span("openwop.run", context, state.started_at, _run_attributes(state))
        nodes: dict[str, Span] = {
            node_id: self._start_node_span(run, state, node_id, node)
            for node_id, node in state.nodes.items()
            if node.started_at
        }
        for draft in found.spans:
            self._export_span(nodes.get(draft.node_id, run), state, draft)
        self._add_evaluations(run, found.evaluations)
        for node_id, span in nodes.items():
            span.end((state.nodes[node_id].ended_at or state.ended_at) * NANOS_PER_MILLI)
        run.end(state.ended_at * NANOS_PER_MILLI)

    def _start_node_span(self, run: Span, state: RunState, node_id: str, node: NodeState) -> Span:
        attributes: Attributes = {
            "openwop.run_id": state.identity.run_id,
            "openwop.node_id": node_id,
            "openwop.node_type": state.graph.nodes[node_id].type_id,
            "openwop.node_status": node.status,
            "openwop.attempt": node.attempt,
        }
        if node.resolution is not None:
            attributes["openwop.interrupt_kind"] = node.resolution.kind
            attributes["openwop.interrupt_id"] = node.resolution.interrupt_id
        if node.error is not None:
            attributes[ERROR_TYPE] = node.error.code
        context = trace.set_span_in_context(run)
        return self._start_span("openwop.node", context, node.started_at, attributes)

    def _export_span(self, parent: Span, state: RunState, draft: SpanDraft) -> None:
        attributes: Attributes = {
            "openwop.run_id": state.identity.run_id,
            "openwop.node_id": draft.node_id,
            "gen_ai.conversation.id": state.identity.run_id,
        }
        span = self._start_span(
            draft.name,
            trace.set_span_in_context(parent),
            draft.start,
            attributes | draft.attributes,
            SpanKind.CLIENT if draft.calls_outside else SpanKind.INTERNAL,
        )
        for child in draft.children:
            self._export_span(span, state, child)
        self._add_evaluations(span, draft.evaluations)
        span.end(draft.end * NANOS_PER_MILLI)

    def _start_span(
        self,
        name: str,
        context: Context | None,
        at: int,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Start a span. A span with an error type has failed."""
        if self._tracer is None:
            return trace.INVALID_SPAN
        # Names and ids come from authors and models, and may contain secrets.
        clean: Attributes = self._redactor.json(attributes)
        name = self._redactor.text(name)
        span = self._tracer.start_span(
            name, context=context, kind=kind, start_time=at * NANOS_PER_MILLI, attributes=clean
        )
        if ERROR_TYPE in clean:
            span.set_status(StatusCode.ERROR, str(clean[ERROR_TYPE]))
        return span

    def _add_evaluations(self, span: Span, evaluations: Iterable[tuple[int, Attributes]]) -> None:
        for at, attributes in evaluations:
            span.add_event(EVALUATION, self._redactor.json(attributes), at * NANOS_PER_MILLI)


def _run_attributes(state: RunState) -> Attributes:
    identity, usage = state.identity, state.usage or {}
    tokens = usage.get("tokens", {})
    attributes = {
        OPERATION: "invoke_workflow",
        "gen_ai.workflow.name": identity.workflow_id,
        "gen_ai.conversation.id": identity.run_id,
        "openwop.run_id": identity.run_id,
        "openwop.workflow_id": identity.workflow_id,
        "openwop.workflow_version": identity.workflow_version,
        "openwop.run_status": state.status,
        "openwop.compliance_class": state.graph.definition.metadata.compliance_class,
        "openwop.interrupt_count": len(state.answers),
        "openwop.parent.run_id": identity.parent_run_id,
        "openwop.parent.node_id": identity.parent_node_id,
        "openwop.cost.tokens.input": tokens.get("input"),
        "openwop.cost.tokens.output": tokens.get("output"),
        "openwop.cost.usd": usage.get("usd"),
        ERROR_TYPE: None if state.error is None else state.error.code,
    }
    return {n: v for n, v in attributes.items() if v is not None and v is not UNSET}

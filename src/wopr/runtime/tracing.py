"""OpenTelemetry: a span per run and per node, under `openwop.*`, made from the log when a run ends.

Made from the log, the spans of a run that survived three restarts are as whole as any other's,
and a host that exports none pays nothing.
"""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from wopr.engine.state import NodeState, RunState

NANOS_PER_MILLI = 1_000_000
_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """Exports finished runs as traces; attributes come from a fixed list, never from content."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        self._tracer: Tracer | None = None
        self._provider: TracerProvider | None = None
        if processor is not None:
            resource = Resource.create({"service.name": "wopr"})
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(processor)
            self._tracer = self._provider.get_tracer("wopr")

    @classmethod
    def from_environment(cls) -> Tracing:
        """Export over OTLP when an endpoint is set in the standard variables."""
        names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if not any(os.environ.get(name) for name in names):
            return cls()
        return cls(BatchSpanProcessor(OTLPSpanExporter()))

    def export(self, state: RunState) -> None:
        """Emit the spans of a run that has ended."""
        if self._tracer is None:
            return
        parent = state.traceparent
        context = _PROPAGATOR.extract({"traceparent": parent}) if parent else None
        span = self._tracer.start_span(
            "openwop.run",
            context=context,
            start_time=state.started_at * NANOS_PER_MILLI,
            attributes={
                "openwop.run_id": state.identity.run_id,
                "openwop.workflow_id": state.identity.workflow_id,
                "openwop.workflow_version": state.identity.workflow_version,
                "openwop.run_status": state.status,
                "openwop.compliance_class": state.graph.definition.metadata.compliance_class,
                "openwop.interrupt_count": len(state.answers),
            },
        )
        for node_id, node in state.nodes.items():
            if node.started_at:
                self._export_node(span, state, node_id, node)
        if state.error is not None:
            span.set_status(StatusCode.ERROR, state.error.code)
        span.end(state.ended_at * NANOS_PER_MILLI)

    def _export_node(self, run: Span, state: RunState, node_id: str, node: NodeState) -> None:
        if self._tracer is None:
            return
        span = self._tracer.start_span(
            "openwop.node",
            context=trace.set_span_in_context(run),
            start_time=node.started_at * NANOS_PER_MILLI,
            attributes={
                "openwop.run_id": state.identity.run_id,
                "openwop.node_id": node_id,
                "openwop.node_type": state.graph.nodes[node_id].type_id,
                "openwop.node_status": node.status,
                "openwop.attempt": node.attempt,
            },
        )
        if node.resolution is not None:
            span.set_attribute("openwop.interrupt_kind", node.resolution.kind)
            span.set_attribute("openwop.interrupt_id", node.resolution.interrupt_id)
        if node.error is not None:
            span.set_status(StatusCode.ERROR, node.error.code)
        span.end((node.ended_at or state.ended_at) * NANOS_PER_MILLI)

    def close(self) -> None:
        """Send what is buffered."""
        if self._provider is not None:
            self._provider.shutdown()

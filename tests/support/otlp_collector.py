"""A trace collector like that of an operator."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.client import DEADLINE_SECONDS


class Collector:
    """Receive OTLP over HTTP and store the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self.arrived:
            # An exporter without a timely response sends the same spans again.
            known = {span.span_id for span in self.spans}
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += [span for span in scope.spans if span.span_id not in known]
            self.arrived.notify_all()

    def of_run(self, run_id: str) -> list[Span]:
        """Return the spans of a run, once its own has arrived."""
        with self.arrived:

            def mine() -> list[Span]:
                return [s for s in self.spans if attributes(s).get("openwop.run_id") == run_id]

            def is_there() -> bool:
                return any(span.name == "openwop.run" for span in mine())

            assert self.arrived.wait_for(is_there, timeout=DEADLINE_SECONDS)
            return mine()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def attributes(span: Span) -> dict[str, Any]:
    """Return the attributes of a span as plain values."""
    return {each.key: _plain(each.value) for each in span.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind)

"""A client of a served host that validates all responses with a recorder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.host import METRICS
from tests.support.recorder import NOTICE, Recorder
from wopr.protocol.documents import Json, JsonObject

TERMINAL = {"completed", "failed", "cancelled"}
# Long enough for a machine that is busy with something else for ten seconds, twice.
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Frame:
    """One SSE frame; a comment is a frame with only its text."""

    id: str = ""
    event: str = ""
    data: str = ""
    comment: str = ""

    @property
    def json(self) -> Json:
        return json.loads(self.data)


def parse_frame(block: str) -> Frame:
    """Parse the lines between two blank lines."""
    if block.startswith(":"):
        return Frame(comment=block[1:])
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    # A notice is not logged: with an id, a reader would resume after a missing event.
    is_notice = fields["event"] == NOTICE
    assert fields.keys() == ({"event", "data"} if is_notice else {"id", "event", "data"})
    return Frame(**fields)


class Wire:
    """A client of a host with one key."""

    def __init__(self, url: str, key: str | None, recorder: Recorder | None = None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.recorder = recorder or Recorder()
        # Loopback needs no certificates, and loading them would slow down every test.
        self.http = httpx.Client(
            base_url=url, headers=headers, timeout=DEADLINE_SECONDS, trust_env=False, verify=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.http.close()

    # Any call

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Make a request and record the response."""
        response = self.http.request(method, path, **options)
        self.recorder.response(response)
        return response

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Json = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return self.request("POST", path, **options)

    def document(self, path: str, **options: Any) -> JsonObject:
        """Return the document of a successful read."""
        response = self.get(path, **options)
        assert response.status_code == 200, response.text
        found: JsonObject = response.json()
        return found

    def metrics(self) -> str:
        """Return the metrics of the host, read with a key of the operator."""
        return self.http.get("/metrics", headers={"Authorization": f"Bearer {METRICS}"}).text

    # Workflows and runs

    def register(self, definition: JsonObject) -> str:
        """Register a definition and return its id."""
        response = self.post("/v1/workflows", definition)
        assert response.status_code in (200, 201), response.text
        return str(definition["id"])

    def create(
        self,
        workflow_id: str,
        inputs: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        **body: Json,
    ) -> str:
        """Start a run and return its id."""
        request = {"workflowId": workflow_id, **body} | (
            {} if inputs is None else {"inputs": inputs}
        )
        response = self.post("/v1/runs", request, headers=dict(headers or {}))
        assert response.status_code == 201, response.text
        return str(response.json()["runId"])

    def snapshot(self, run_id: str) -> JsonObject:
        return self.document(f"/v1/runs/{run_id}")

    def log(self, run_id: str) -> list[JsonObject]:
        """Return the whole log."""
        found = self.document(f"/v1/runs/{run_id}/events", headers={"Accept": "application/json"})
        events: list[JsonObject] = found["events"]
        return events

    def types(self, run_id: str) -> list[str]:
        return [event["type"] for event in self.log(run_id)]

    def poll(self, run_id: str, **params: int) -> JsonObject:
        return self.document(f"/v1/runs/{run_id}/events/poll", params=params)

    def events_until(self, run_id: str, *wanted: str, times: int = 1) -> list[JsonObject]:
        """Long-poll until the log has so many events of wanted types; return all events so far."""
        events: list[JsonObject] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while sum(event["type"] in wanted for event in events) < times:
            assert time.monotonic() < deadline, [event["type"] for event in events]
            page = self.poll(run_id, lastSequence=len(events) - 1, timeout=1)
            assert page["events"] or not page["isComplete"], events
            events += page["events"]
        return events

    def finished(self, run_id: str) -> JsonObject:
        """Wait for the run's end and return its snapshot."""
        self.events_until(run_id, "run.completed", "run.failed", "run.cancelled")
        found = self.snapshot(run_id)
        assert found["status"] in TERMINAL
        return found

    def run(self, workflow_id: str, inputs: JsonObject | None = None, **body: Json) -> JsonObject:
        """Start a run, wait for its end and return its snapshot."""
        return self.finished(self.create(workflow_id, inputs, **body))

    # Streams

    @contextmanager
    def stream(
        self, run_id: str, headers: Mapping[str, str] | None = None, **params: Json
    ) -> Iterator[Iterator[Frame]]:
        """Open an SSE stream."""
        path = f"/v1/runs/{run_id}/events"
        with self.http.stream("GET", path, params=params, headers=dict(headers or {})) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream"
            yield self._frames(response)

    def _frames(self, response: httpx.Response) -> Iterator[Frame]:
        pending = ""
        for text in response.iter_text():
            pending += text
            *blocks, pending = pending.split("\n\n")
            for frame in map(parse_frame, blocks):
                if frame.data:
                    self.recorder.frame(frame.event, frame.json)
                yield frame
        assert not pending

    def frames(
        self, run_id: str, headers: Mapping[str, str] | None = None, **params: Json
    ) -> list[Frame]:
        """Return every frame until the host closes the stream."""
        with self.stream(run_id, headers, **params) as frames:
            return [frame for frame in frames if not frame.comment]

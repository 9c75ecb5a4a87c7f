"""Calls of one host: requests with typed answers, and the stream of a run's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TypeVar

import httpx
import msgspec

from wopr.api.errors import HostRefused, HostUnreachable
from wopr.api.requests import Requests, segment
from wopr.api.stream import EventStream, Frame, event_lines
from wopr.protocol.errors import ErrorEnvelope
from wopr.protocol.runs import TERMINAL, RunSnapshot

T = TypeVar("T")


class Connection(Requests):
    """Calls of one host; every failure is a `HostError`."""

    async def get(
        self,
        path: str,
        kind: type[T],
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Read a document."""
        return _decoded(await self._send("GET", path, query=query, headers=headers), kind)

    async def post(
        self,
        path: str,
        body: object,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send a document and read the answer."""
        response = await self._send_document(path, body, query=query, headers=headers)
        return _decoded(response, kind)

    async def ended(self, run_id: str) -> RunSnapshot:
        """Read a run, with the values that its outputs refer to."""
        found = await self.get(f"/v1/runs/{segment(run_id)}", RunSnapshot)
        outputs = await self._whole_outputs(run_id, found.outputs)
        return msgspec.structs.replace(found, outputs=outputs)

    def frames(self, run_id: str, *, mode: str, after: int | None) -> AsyncGenerator[Frame, None]:
        """Follow a run until it ends, over as many connections as it takes."""

        async def is_over() -> bool:
            snapshot = await self.get(f"/v1/runs/{segment(run_id)}", RunSnapshot)
            return snapshot.status in TERMINAL

        def connect(after: int | None) -> AsyncGenerator[str, None]:
            return event_lines(self._http, run_id, mode, after, self._refused)

        return EventStream(connect, is_over, after=after, is_gapless=mode == "debug").frames()

    def _refused(self, response: httpx.Response) -> HostRefused:
        try:
            envelope = msgspec.json.decode(response.content, type=ErrorEnvelope)
        except (msgspec.DecodeError, UnicodeError):
            answered = f"{response.status_code} {response.reason_phrase}".strip()
            message = f"{self._http.base_url} answered {answered}, and not as an OpenWOP host does"
            envelope = ErrorEnvelope(error="bad_answer", message=message)
        return HostRefused(
            envelope.message,
            code=envelope.error,
            status=response.status_code,
            details=envelope.details,
        )

    def _unreachable(self, fault: Exception) -> HostUnreachable:
        reason = str(fault) or type(fault).__name__
        return HostUnreachable(f"cannot reach {self._http.base_url}: {reason}")


def _decoded(response: httpx.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise HostUnreachable(
            f"{response.request.url} did not answer as an OpenWOP host does: {fault}",
            code="bad_answer",
        ) from fault

"""A typed client of the host's HTTP surface, as far as the command line needs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import httpx
import msgspec

from wopr import __version__
from wopr.api.requests import Requests, segment
from wopr.api.stream import event_lines
from wopr.cli.credentials import Server
from wopr.cli.documents import (
    AgentInventory,
    AgentItem,
    InboxItem,
    Listing,
    Verdict,
    WorkflowListItem,
)
from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode
from wopr.cli.fleet_calls import FleetCalls
from wopr.cli.refusals import refusal, unreachable
from wopr.cli.stream import EventStream, Frame
from wopr.protocol.annotations import Annotation, AnnotationCreate, AnnotationList
from wopr.protocol.documents import JsonObject, Unset, encode
from wopr.protocol.forks import ForkAccepted, ForkPreview, ForkRun, RunDiff
from wopr.protocol.interrupts import AnswerTaken, ResolveInterrupt
from wopr.protocol.processes import ProcessList
from wopr.protocol.quotas import UsageReport
from wopr.protocol.references import MARK
from wopr.protocol.reviews import FeedbackSummary
from wopr.protocol.runs import (
    TERMINAL,
    BulkCancel,
    BulkCancelAnswer,
    CancelAnswer,
    CancelRun,
    CreateRun,
    PauseAnswer,
    PauseRun,
    ResumeAnswer,
    ResumeRun,
    RunAccepted,
    RunListItem,
    RunSnapshot,
)

T = TypeVar("T")

# The members of a snapshot that can have references to large values.
VALUES: Final = ("inputs", "outputs", "variables", "channels")
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_NDJSON: Final = {"Content-Type": "application/x-ndjson"}


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A decoded answer, and the bytes it came as: `--json` prints those."""

    document: T
    body: bytes


class Client(Requests, FleetCalls):
    """Calls of one server; every failure is a `CliError`."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        super().__init__(http)
        self.server = server

    async def create_run(
        self, body: CreateRun, idempotency_key: str | None = None
    ) -> Answer[RunAccepted]:
        """Start a run."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return await self._post("/v1/runs", body, RunAccepted, headers)

    async def snapshot(self, run_id: str) -> Answer[RunSnapshot]:
        """Read a run as it stands now."""
        return await self._get(f"/v1/runs/{segment(run_id)}", RunSnapshot)

    async def ended(self, run_id: str) -> Answer[RunSnapshot]:
        """Read a run, with the values that its outputs refer to."""
        found = await self.snapshot(run_id)
        if MARK not in found.body:
            return found
        outputs = await self._whole_outputs(run_id, found.document.outputs)
        document = msgspec.structs.replace(found.document, outputs=outputs)
        return Answer(document, encode(document))

    async def whole(self, run_id: str) -> Answer[RunSnapshot]:
        """Read a run, with all values that it refers to."""
        found = await self.snapshot(run_id)
        if MARK not in found.body:
            return found
        snapshot = found.document
        members = {name: getattr(snapshot, name) for name in VALUES}
        stored = {name: value for name, value in members.items() if not isinstance(value, Unset)}
        values = await self._whole_outputs(run_id, stored) or {}
        document = msgspec.structs.replace(snapshot, **values)
        return Answer(document, encode(document))

    async def runs(self, query: Mapping[str, str]) -> Answer[Listing[RunListItem]]:
        """Read one page of runs, newest first."""
        return await self._get("/v1/runs", Listing[RunListItem], query)

    async def cancel(self, run_id: str, body: CancelRun) -> Answer[CancelAnswer]:
        """Cancel one run."""
        return await self._post(f"/v1/runs/{segment(run_id)}/cancel", body, CancelAnswer)

    async def bulk_cancel(self, body: BulkCancel) -> Answer[BulkCancelAnswer]:
        """Cancel many runs; the answer has one item per run."""
        return await self._post("/v1/runs:bulk-cancel", body, BulkCancelAnswer)

    async def pause(self, run_id: str, body: PauseRun) -> Answer[PauseAnswer]:
        """Pause a run."""
        return await self._post(f"/v1/runs/{segment(run_id)}:pause", body, PauseAnswer)

    async def resume(self, run_id: str, body: ResumeRun) -> Answer[ResumeAnswer]:
        """Resume a paused run."""
        return await self._post(f"/v1/runs/{segment(run_id)}:resume", body, ResumeAnswer)

    async def inbox(self, query: Mapping[str, str]) -> Answer[Listing[InboxItem]]:
        """Read one page of what waits for an answer, newest first."""
        return await self._get("/v1/interrupts", Listing[InboxItem], query)

    async def answer(
        self, run_id: str, node_id: str, body: ResolveInterrupt, interrupt_id: str | None
    ) -> Answer[AnswerTaken]:
        """Answer what a node waits for; only that wait, where one is named."""
        path = f"/v1/runs/{segment(run_id)}/interrupts/{segment(node_id)}"
        query = {} if interrupt_id is None else {"interruptId": interrupt_id}
        return await self._post(path, body, AnswerTaken, query=query)

    async def workflows(self, query: Mapping[str, str]) -> Answer[Listing[WorkflowListItem]]:
        """Read one page of registered workflows."""
        return await self._get("/v1/workflows", Listing[WorkflowListItem], query)

    async def workflow(self, workflow_id: str, version: str | None) -> Answer[JsonObject]:
        """Read a definition as it was registered."""
        query = {} if version is None else {"version": version}
        return await self._get(f"/v1/workflows/{segment(workflow_id)}", JsonObject, query)

    async def add_workflow(
        self, definition: JsonObject, alongside: Sequence[str] = ()
    ) -> Answer[JsonObject]:
        """Register a definition. It may start the workflows that are registered alongside."""
        query = {"alongside": ",".join(alongside)} if alongside else {}
        return await self._post("/v1/workflows", definition, JsonObject, query=query)

    async def check_workflow(
        self, definition: JsonObject, alongside: Sequence[str] = ()
    ) -> Answer[Verdict]:
        """Ask whether a definition could be registered together with those named."""
        query = {"alongside": ",".join(alongside)} if alongside else {}
        return await self._post("/v1/workflows:validate", definition, Verdict, query=query)

    async def agents(self) -> Answer[AgentInventory]:
        """Read the inventory of agents."""
        return await self._get("/v1/agents", AgentInventory)

    async def agent(self, agent_id: str, version: str | None) -> Answer[JsonObject]:
        """Read one agent of the inventory."""
        query = {} if version is None else {"version": version}
        return await self._get(f"/v1/agents/{segment(agent_id)}", JsonObject, query)

    async def add_agent(self, manifest: JsonObject) -> Answer[AgentItem]:
        """Install a manifest."""
        return await self._post("/v1/agents", manifest, AgentItem)

    async def annotate(self, run_id: str, body: AnnotationCreate) -> Answer[Annotation]:
        """Annotate a run."""
        return await self._post(f"/v1/runs/{segment(run_id)}/annotations", body, Annotation)

    async def annotations(self, run_id: str) -> Answer[AnnotationList]:
        """Read all annotations of a run."""
        return await self._get(f"/v1/runs/{segment(run_id)}/annotations", AnnotationList)

    async def feedback_summary(self, query: Mapping[str, str]) -> Answer[FeedbackSummary]:
        """Read what annotations add up to."""
        return await self._get("/v1/feedback/summary", FeedbackSummary, query)

    def export(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Read an export piece by piece; one that breaks off is a failure."""
        return self._pieces("/v1/export/runs", query)

    async def _pieces(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        try:
            async with self._http.stream("GET", path, params=query) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._refused(response)
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.HTTPError as fault:
            raise self._unreachable(fault) from fault

    async def fork(self, run_id: str, body: ForkRun) -> Answer[ForkAccepted]:
        """Fork a run."""
        return await self._post(f"/v1/runs/{segment(run_id)}:fork", body, ForkAccepted)

    async def preview_fork(self, run_id: str, body: ForkRun) -> Answer[ForkPreview]:
        """Ask what a fork would do."""
        return await self._post(f"/v1/runs/{segment(run_id)}:fork?dryRun=true", body, ForkPreview)

    async def diff(self, run_id: str, other: str) -> Answer[RunDiff]:
        """Compare two runs."""
        return await self._get(f"/v1/runs/{segment(run_id)}:diff", RunDiff, {"against": other})

    async def bundle(self, run_id: str, query: Mapping[str, str]) -> Answer[JsonObject]:
        """Export a run for diagnosis."""
        return await self._get(f"/v1/runs/{segment(run_id)}/debug-bundle", JsonObject, query)

    async def processes(self) -> Answer[ProcessList]:
        """Read which processes are alive, and which runs wait for code."""
        return await self._get("/v1/processes", ProcessList)

    async def usage(self) -> Answer[UsageReport]:
        """Read use against quota."""
        return await self._get("/v1/usage", UsageReport)

    async def discovery(self) -> tuple[Answer[JsonObject], Mapping[str, str]]:
        """Read the discovery document and the headers it came with."""
        response = await self._send("GET", "/.well-known/openwop")
        return _decode(response, JsonObject), response.headers

    def events(
        self, run_id: str, *, mode: str, after: int | None = None
    ) -> AsyncGenerator[Frame, None]:
        """Follow a run's events after a sequence, until the run ends."""

        async def is_over() -> bool:
            return (await self.snapshot(run_id)).document.status in TERMINAL

        def connect(after: int | None) -> AsyncGenerator[str, None]:
            return event_lines(self._http, run_id, mode, after, self._refused)

        is_gapless = "debug" in mode.split(",")
        return EventStream(connect, is_over, after=after, is_gapless=is_gapless).frames()

    async def _get(
        self, path: str, kind: type[T], query: Mapping[str, str] | None = None
    ) -> Answer[T]:
        return _decode(await self._send("GET", path, query=query), kind)

    async def _post(
        self,
        path: str,
        body: object,
        kind: type[T],
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer[T]:
        response = await self._send_document(path, body, query=query, headers=headers)
        return _decode(response, kind)

    async def _post_lines(self, path: str, body: bytes, kind: type[T]) -> Answer[T]:
        return _decode(await self._send("POST", path, content=body, headers=_NDJSON), kind)

    def _refused(self, response: httpx.Response) -> CliError:
        return refusal(response, self.server)

    def _unreachable(self, fault: Exception) -> CliError:
        return unreachable(self.server, fault)


@asynccontextmanager
async def open_client(server: Server) -> AsyncGenerator[Client, None]:
    """Open a client of the server."""
    headers = {"User-Agent": f"wopr/{__version__}", "Accept": "application/json"}
    if server.api_key is not None:
        headers["Authorization"] = f"Bearer {server.api_key}"
    try:
        url = httpx.URL(server.url)
    except httpx.InvalidURL as fault:
        raise CliError(f"{server.url} is not a URL: {fault}", ExitCode.USAGE) from None
    # A proxy of the environment is never the way to this same machine.
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=30.0, trust_env=url.host not in _LOOPBACK
    ) as http:
        yield Client(server, http)


def _decode(response: httpx.Response, kind: type[T]) -> Answer[T]:
    try:
        return Answer(msgspec.json.decode(response.content, type=kind), response.content)
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise CliError(
            f"{response.request.url} did not answer as an OpenWOP host does: {fault}",
            ExitCode.UNAVAILABLE,
            code="bad_answer",
            hint="is this URL a WOPR server? ask it with `wopr doctor`",
        ) from None

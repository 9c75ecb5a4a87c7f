"""The HTTP client of a host. The command line and the Python API use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from wopr.api.documents import (
    AgentInventory,
    AgentItem,
    Listing,
    ValidationReport,
    WorkflowListItem,
)
from wopr.api.errors import HostRefused, HostUnreachable
from wopr.api.events import (
    SILENCE_SECONDS,
    Event,
    EventStream,
    Frame,
    OnHeartbeat,
    read_frames,
)
from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.errors import ErrorEnvelope
from wopr.protocol.forks import ForkAccepted, ForkPreview, ForkRun, RunDiff
from wopr.protocol.interrupts import AnswerTaken, InboxItem, ResolveInterrupt
from wopr.protocol.references import REFERENCE_MARK, references_in, resolve_references
from wopr.protocol.resources.annotations import Annotation, AnnotationCreate, AnnotationList
from wopr.protocol.resources.fleet import AgentRuns, Aggregate, Flakiness, FleetRuns
from wopr.protocol.resources.processes import ProcessList
from wopr.protocol.resources.quotas import UsageReport
from wopr.protocol.resources.reviews import CreateJudge, FeedbackSummary, Judge
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
from wopr.version import __version__

T = TypeVar("T")
Query = Mapping[str, str]

DEFAULT_URL: Final = "http://127.0.0.1:8642"
# The members of a snapshot that can have references to large values.
_VALUE_MEMBERS: Final = ("inputs", "outputs", "variables", "channels")
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_JSON_HEADERS: Final = {"Content-Type": "application/json"}
_NDJSON_HEADERS: Final = {"Content-Type": "application/x-ndjson"}
# Errors of the request itself. Another attempt would fail too.
_PERMANENT: Final = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL)


@dataclass(frozen=True, slots=True)
class DecodedResponse(Generic[T]):
    """A decoded response, and its body as bytes."""

    document: T
    body: bytes


class _RunLog(msgspec.Struct, frozen=True, kw_only=True):
    """A run's log as one document."""

    events: list[Event]


class Client:
    """The HTTP client of one host. Every failure is a `HostError`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.has_key = "authorization" in http.headers
        self.url = str(http.base_url).rstrip("/")

    # Runs

    async def create_run(
        self, body: CreateRun, idempotency_key: str | None = None
    ) -> DecodedResponse[RunAccepted]:
        """Start a run."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return await self._post("/v1/runs", body, RunAccepted, headers=headers)

    async def snapshot(self, run_id: str) -> DecodedResponse[RunSnapshot]:
        """Read the current state of a run. Large values are references."""
        return await self._get(_run_path(run_id), RunSnapshot)

    async def snapshot_with_outputs(self, run_id: str) -> DecodedResponse[RunSnapshot]:
        """Read a run, with the values that its outputs refer to."""
        return await self._snapshot_with(run_id, ("outputs",))

    async def snapshot_with_values(self, run_id: str) -> DecodedResponse[RunSnapshot]:
        """Read a run, with all values that it refers to."""
        return await self._snapshot_with(run_id, _VALUE_MEMBERS)

    async def runs(self, query: Query) -> DecodedResponse[Listing[RunListItem]]:
        """Read one page of runs, newest first."""
        return await self._get("/v1/runs", Listing[RunListItem], query)

    async def cancel(self, run_id: str, body: CancelRun) -> DecodedResponse[CancelAnswer]:
        """Cancel one run."""
        return await self._post(f"{_run_path(run_id)}/cancel", body, CancelAnswer)

    async def bulk_cancel(self, body: BulkCancel) -> DecodedResponse[BulkCancelAnswer]:
        """Cancel many runs. The response has one item per run."""
        return await self._post("/v1/runs:bulk-cancel", body, BulkCancelAnswer)

    async def pause(self, run_id: str, body: PauseRun) -> DecodedResponse[PauseAnswer]:
        """Pause a run."""
        return await self._post(f"{_run_path(run_id)}:pause", body, PauseAnswer)

    async def resume(self, run_id: str, body: ResumeRun) -> DecodedResponse[ResumeAnswer]:
        """Resume a paused run."""
        return await self._post(f"{_run_path(run_id)}:resume", body, ResumeAnswer)

    async def fork(self, run_id: str, body: ForkRun) -> DecodedResponse[ForkAccepted]:
        """Fork a run."""
        return await self._post(f"{_run_path(run_id)}:fork", body, ForkAccepted)

    async def preview_fork(self, run_id: str, body: ForkRun) -> DecodedResponse[ForkPreview]:
        """Read what a fork would do, without doing it."""
        return await self._post(f"{_run_path(run_id)}:fork?dryRun=true", body, ForkPreview)

    async def diff(self, run_id: str, other: str) -> DecodedResponse[RunDiff]:
        """Compare two runs."""
        return await self._get(f"{_run_path(run_id)}:diff", RunDiff, {"against": other})

    async def bundle(self, run_id: str, query: Query) -> DecodedResponse[JsonObject]:
        """Read the debug bundle of a run."""
        return await self._get(f"{_run_path(run_id)}/debug-bundle", JsonObject, query)

    async def log(self, run_id: str) -> list[Event]:
        """Read all events of a run so far."""
        headers = {"Accept": "application/json"}
        response = await self._send("GET", f"{_run_path(run_id)}/events", headers=headers)
        return _decode(response, _RunLog).document.events

    def events(
        self, run_id: str, *, mode: str, after: int | None = None
    ) -> AsyncGenerator[Frame, None]:
        """Follow a run's events after a sequence until it ends. Lost connections are resumed."""

        async def has_ended() -> bool:
            return (await self.snapshot(run_id)).document.status in TERMINAL

        def connect(after: int | None, on_heartbeat: OnHeartbeat) -> AsyncGenerator[Frame, None]:
            return self._event_frames(run_id, mode, after, on_heartbeat)

        is_gapless = "debug" in mode.split(",")
        return EventStream(connect, has_ended, after=after, is_gapless=is_gapless).frames()

    # Interrupts

    async def inbox(self, query: Query) -> DecodedResponse[Listing[InboxItem]]:
        """Read one page of open interrupts, newest first."""
        return await self._get("/v1/interrupts", Listing[InboxItem], query)

    async def resolve(
        self, run_id: str, node_id: str, body: ResolveInterrupt, interrupt_id: str | None
    ) -> DecodedResponse[AnswerTaken]:
        """Resolve the interrupt of a node. With an `interrupt_id`, resolve only that interrupt."""
        path = f"{_run_path(run_id)}/interrupts/{_quoted(node_id)}"
        query = {} if interrupt_id is None else {"interruptId": interrupt_id}
        return await self._post(path, body, AnswerTaken, query=query)

    # Workflows and agents

    async def workflows(self, query: Query) -> DecodedResponse[Listing[WorkflowListItem]]:
        """Read one page of registered workflows."""
        return await self._get("/v1/workflows", Listing[WorkflowListItem], query)

    async def workflow(
        self, workflow_id: str, version: str | None = None
    ) -> DecodedResponse[JsonObject]:
        """Read a definition as it was registered; without a version the newest."""
        query = {} if version is None else {"version": version}
        return await self._get(f"/v1/workflows/{_quoted(workflow_id)}", JsonObject, query)

    async def add_workflow(
        self, definition: JsonObject, alongside: Sequence[str] = ()
    ) -> DecodedResponse[JsonObject]:
        """Register a definition. It may start the workflows that are registered alongside."""
        return await self._post(
            "/v1/workflows", definition, JsonObject, query=_alongside_query(alongside)
        )

    async def validate_workflow(
        self, definition: JsonObject, alongside: Sequence[str] = ()
    ) -> DecodedResponse[ValidationReport]:
        """Check a definition without registering it."""
        query = _alongside_query(alongside)
        return await self._post("/v1/workflows:validate", definition, ValidationReport, query=query)

    async def agents(self) -> DecodedResponse[AgentInventory]:
        """Read the inventory of agents."""
        return await self._get("/v1/agents", AgentInventory)

    async def agent(self, agent_id: str, version: str | None = None) -> DecodedResponse[JsonObject]:
        """Read one agent of the inventory; without a version the newest."""
        query = {} if version is None else {"version": version}
        return await self._get(f"/v1/agents/{_quoted(agent_id)}", JsonObject, query)

    async def add_agent(self, manifest: JsonObject) -> DecodedResponse[AgentItem]:
        """Install a manifest."""
        return await self._post("/v1/agents", manifest, AgentItem)

    # Feedback

    async def annotate(self, run_id: str, body: AnnotationCreate) -> DecodedResponse[Annotation]:
        """Annotate a run."""
        return await self._post(f"{_run_path(run_id)}/annotations", body, Annotation)

    async def annotations(self, run_id: str) -> DecodedResponse[AnnotationList]:
        """Read all annotations of a run."""
        return await self._get(f"{_run_path(run_id)}/annotations", AnnotationList)

    async def feedback_summary(self, query: Query) -> DecodedResponse[FeedbackSummary]:
        """Read the counts and rates of annotations."""
        return await self._get("/v1/feedback/summary", FeedbackSummary, query)

    async def create_judge(self, body: CreateJudge) -> DecodedResponse[Judge]:
        """Start the judging of runs."""
        return await self._post("/v1/judges", body, Judge)

    async def judge(self, judge_id: str) -> DecodedResponse[Judge]:
        """Read the progress of a judge."""
        return await self._get(f"/v1/judges/{_quoted(judge_id)}", Judge)

    def export(self, query: Query) -> AsyncGenerator[bytes, None]:
        """Read an export in chunks. Raises `HostUnreachable` if it is incomplete."""
        return self._chunks("/v1/export/runs", query)

    # The fleet

    def transitions(self, run_id: str) -> AsyncGenerator[bytes, None]:
        """Read a run as KAHN lines, in chunks."""
        return self._chunks(f"{_run_path(run_id)}/transitions", {})

    async def ingest(self, body: bytes) -> DecodedResponse[JsonObject]:
        """Push KAHN lines."""
        path = "/v1/ingest/transitions"
        return _decode(
            await self._send("POST", path, content=body, headers=_NDJSON_HEADERS), JsonObject
        )

    async def fleet_agents(self, query: Query) -> DecodedResponse[Aggregate]:
        """Read one row per agent of the fleet."""
        return await self._get("/api/agent-runs/aggregate", Aggregate, query)

    async def fleet_agent_runs(self, agent_id: str, query: Query) -> DecodedResponse[AgentRuns]:
        """Read one page of an agent's runs."""
        return await self._get(f"/api/agents/{_quoted(agent_id)}/agent-runs", AgentRuns, query)

    async def fleet_runs(self, query: Query) -> DecodedResponse[FleetRuns]:
        """Read one page of KAHN runs."""
        return await self._get("/api/runs", FleetRuns, query)

    async def fleet_audits(self, query: Query) -> DecodedResponse[Flakiness]:
        """Read one row per audit checkpoint."""
        return await self._get("/api/audit-checkpoints/flakiness", Flakiness, query)

    # The host

    async def discovery(self) -> tuple[DecodedResponse[JsonObject], Mapping[str, str]]:
        """Read the discovery document and its response headers."""
        response = await self._send("GET", "/.well-known/openwop")
        return _decode(response, JsonObject), response.headers

    async def processes(self) -> DecodedResponse[ProcessList]:
        """Read the live processes, and the runs that wait for code."""
        return await self._get("/v1/processes", ProcessList)

    async def usage(self) -> DecodedResponse[UsageReport]:
        """Read the usage of the quotas."""
        return await self._get("/v1/usage", UsageReport)

    # Requests

    async def _get(
        self, path: str, kind: type[T], query: Query | None = None
    ) -> DecodedResponse[T]:
        return _decode(await self._send("GET", path, query=query), kind)

    async def _post(
        self,
        path: str,
        body: object,
        kind: type[T],
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> DecodedResponse[T]:
        sent = {**_JSON_HEADERS, **(headers or {})}
        return _decode(
            await self._send("POST", path, query=query, content=encode(body), headers=sent), kind
        )

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            response = await self._http.request(
                method, path, params=query, content=content, headers=headers
            )
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            raise self._unreachable(fault) from fault
        if not response.is_success:
            raise self._refused(response)
        return response

    async def _chunks(self, path: str, query: Query) -> AsyncGenerator[bytes, None]:
        try:
            async with self._http.stream("GET", path, params=query) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._refused(response)
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.HTTPError as fault:
            raise self._unreachable(fault) from fault

    async def _event_frames(
        self, run_id: str, mode: str, after: int | None, on_heartbeat: OnHeartbeat
    ) -> AsyncGenerator[Frame, None]:
        """Read the frames of one connection to a run's event stream."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        async with self._http.stream(
            "GET",
            f"{_run_path(run_id)}/events",
            params={"streamMode": mode},
            headers=headers,
            timeout=httpx.Timeout(10.0, read=SILENCE_SECONDS),
        ) as response:
            if response.status_code != 200:
                await response.aread()
                raise self._refused(response)
            async with aclosing(read_frames(response.aiter_bytes(), on_heartbeat)) as frames:
                async for frame in frames:
                    yield frame

    async def _snapshot_with(
        self, run_id: str, names: Sequence[str]
    ) -> DecodedResponse[RunSnapshot]:
        """Read a run, and replace the references in these members with the values."""
        response = await self.snapshot(run_id)
        if REFERENCE_MARK not in response.body:
            return response
        members = {name: getattr(response.document, name) for name in names}
        stored = {name: value for name, value in members.items() if not isinstance(value, Unset)}
        values: dict[str, Json] = {}
        for reference in references_in(stored):
            name: str = reference["artifactId"]
            if name not in values:
                path = f"{_run_path(run_id)}/artifacts/{_quoted(name)}"
                values[name] = msgspec.json.decode((await self._send("GET", path)).content)
        document = msgspec.structs.replace(response.document, **resolve_references(stored, values))
        return DecodedResponse(document, encode(document))

    def _refused(self, response: httpx.Response) -> HostRefused:
        try:
            envelope = msgspec.json.decode(response.content, type=ErrorEnvelope)
        except (msgspec.DecodeError, UnicodeError):
            status = f"{response.status_code} {response.reason_phrase}".strip()
            message = f"{self.url} responded {status}, which is not an OpenWOP error"
            envelope = ErrorEnvelope(error="bad_answer", message=message)
        return HostRefused(
            envelope.message,
            code=envelope.error,
            status=response.status_code,
            details=envelope.details,
            retry_after=_retry_after(response.headers.get("retry-after")),
        )

    def _unreachable(self, fault: Exception) -> HostUnreachable:
        return HostUnreachable(
            f"cannot reach {self.url}: {str(fault) or type(fault).__name__}",
            is_transient=not isinstance(fault, _PERMANENT),
        )


@asynccontextmanager
async def open_client(
    url: str, api_key: str | None, *, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncGenerator[Client, None]:
    """Open a client of the host at `url`. Raises `httpx.InvalidURL`."""
    headers = {"User-Agent": f"wopr/{__version__}", "Accept": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    parsed = httpx.URL(url)
    # HTTP proxies of the environment are ignored for a host on this machine.
    async with httpx.AsyncClient(
        base_url=parsed,
        headers=headers,
        timeout=30.0,
        trust_env=parsed.host not in _LOOPBACK,
        transport=transport,
    ) as http:
        yield Client(http)


def _quoted(name: str) -> str:
    """Quote a name as one segment of a path."""
    return quote(name, safe="")


def _run_path(run_id: str) -> str:
    return f"/v1/runs/{_quoted(run_id)}"


def _alongside_query(workflow_ids: Sequence[str]) -> Query:
    return {"alongside": ",".join(workflow_ids)} if workflow_ids else {}


def _decode(response: httpx.Response, kind: type[T]) -> DecodedResponse[T]:
    try:
        return DecodedResponse(msgspec.json.decode(response.content, type=kind), response.content)
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise HostUnreachable(
            f"the response of {response.request.url} is not an OpenWOP response: {fault}",
            code="bad_answer",
        ) from fault


def _retry_after(header: str | None) -> float | None:
    """Parse a `Retry-After` in seconds. A date is ignored."""
    return float(header) if header is not None and header.isdecimal() else None

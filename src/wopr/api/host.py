"""A host in a program's hands: register, start, and look at what waits."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar, Unpack, overload

import anyio
import httpx

from wopr import __version__
from wopr.api.agent import Agent, agent_id
from wopr.api.connection import Connection
from wopr.api.documents import InboxItem, Listing
from wopr.api.errors import HostRefused
from wopr.api.filters import FeedbackFilters, InboxFilters, RunFilters, query_of
from wopr.api.requests import segment
from wopr.api.run import Run
from wopr.api.workflow import AnyWorkflow, Workflow
from wopr.nodes.typed import to_json
from wopr.protocol.documents import JsonObject
from wopr.protocol.reviews import CreateJudge, FeedbackSummary, Judge, SummaryBy
from wopr.protocol.runs import CreateRun, RunAccepted, RunListItem
from wopr.runtime.numbering import same_content, versioned

In = TypeVar("In")
Out = TypeVar("Out")

DEFAULT_URL: Final = "http://127.0.0.1:8642"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_JUDGE_LOOK_SECONDS: Final = 0.05


class Host:
    """A host as its clients see it. Made by `connect`, or by `wopr.testing.memory_host`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def register(self, what: Workflow[In, Out] | Agent | JsonObject) -> str:
        """Register a workflow or an agent, and answer with the version that it now has.

        One without a version of its own gets the next one whenever its content has changed. A
        document is registered exactly as it is.
        """
        if isinstance(what, Workflow):
            batch = _with_children(what)
            versions = {each.id: await self._register_workflow(each, batch) for each in batch}
            return versions[what.id]
        if isinstance(what, Agent):
            return await self._register(
                "/v1/agents", what.id, what.manifest(), is_fixed=what.version is not None
            )
        path = "/v1/agents" if "agentId" in what else "/v1/workflows"
        await self.connection.post(path, what, JsonObject)
        return str(what.get("version", ""))

    @overload
    async def start(
        self,
        workflow: Workflow[In, Out],
        inputs: In | None = None,
        *,
        tags: Sequence[str] = (),
        configurable: JsonObject | None = None,
        metadata: JsonObject | None = None,
        idempotency_key: str | None = None,
    ) -> Run[Out]: ...

    @overload
    async def start(
        self,
        workflow: str,
        inputs: JsonObject | None = None,
        *,
        tags: Sequence[str] = (),
        configurable: JsonObject | None = None,
        metadata: JsonObject | None = None,
        idempotency_key: str | None = None,
    ) -> Run[JsonObject]: ...

    async def start(
        self,
        workflow: Workflow[In, Out] | str,
        inputs: object = None,
        *,
        tags: Sequence[str] = (),
        configurable: JsonObject | None = None,
        metadata: JsonObject | None = None,
        idempotency_key: str | None = None,
    ) -> Run[Out] | Run[JsonObject]:
        """Start a run; a workflow built here is registered first.

        The same `idempotency_key` never starts a second run.
        """
        given: JsonObject
        if isinstance(workflow, Workflow):
            await self.register(workflow)
            given = workflow.given(inputs)
        else:
            given = {} if inputs is None else to_json(inputs)
        body = CreateRun(
            workflow_id=workflow if isinstance(workflow, str) else workflow.id,
            inputs=given,
            tags=list(tags),
            configurable=configurable or {},
            metadata=metadata or {},
        )
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        accepted = await self.connection.post("/v1/runs", body, RunAccepted, headers=headers)
        if isinstance(workflow, str):
            return self.run(accepted.run_id)
        return Run(self.connection, accepted.run_id, workflow.outputs_type)

    def run(self, run_id: str) -> Run[JsonObject]:
        """Take up a run by its id."""
        return Run(self.connection, run_id, dict)

    async def runs(self, **filters: Unpack[RunFilters]) -> list[RunListItem]:
        """List runs, newest first; filters are those of `GET /v1/runs`."""
        query = query_of(filters, RunFilters.__annotations__)
        return (await self.connection.get("/v1/runs", Listing[RunListItem], query)).items

    async def inbox(self, **filters: Unpack[InboxFilters]) -> list[InboxItem]:
        """List what waits for an answer, newest first; filters are those of `GET /v1/interrupts`."""
        query = query_of(filters, InboxFilters.__annotations__)
        return (await self.connection.get("/v1/interrupts", Listing[InboxItem], query)).items

    async def feedback(
        self, by: SummaryBy = "workflow", **filters: Unpack[FeedbackFilters]
    ) -> FeedbackSummary:
        """Count annotations and runs, with the mean rating and the rates of each group.

        Filters are those of `GET /v1/feedback/summary`.
        """
        query = query_of(filters, FeedbackFilters.__annotations__) | {"by": by}
        return await self.connection.get("/v1/feedback/summary", FeedbackSummary, query)

    async def judge(
        self, workflow: Workflow[In, Out] | str, agent: Agent | str, runs: Sequence[str]
    ) -> Judge:
        """Have a workflow judge finished runs in the name of an agent, and wait until it has.

        Every run gets one annotation, or a reason why there is none.
        """
        if isinstance(workflow, Workflow):
            await self.register(workflow)
        if isinstance(agent, Agent):
            await self.register(agent)
        body = CreateJudge(
            workflow_id=workflow if isinstance(workflow, str) else workflow.id,
            agent_id=agent_id(agent),
            run_ids=list(runs),
        )
        judge = await self.connection.post("/v1/judges", body, Judge)
        while judge.state != "done":
            await anyio.sleep(_JUDGE_LOOK_SECONDS)
            judge = await self.connection.get(f"/v1/judges/{segment(judge.judge_id)}", Judge)
        return judge

    async def _register_workflow(self, flow: AnyWorkflow, batch: Sequence[AnyWorkflow]) -> str:
        """Register one workflow of a batch whose members may start each other."""
        for agent in flow.agents:
            await self.register(agent)
        return await self._register(
            "/v1/workflows",
            flow.id,
            flow.document(),
            is_fixed=flow.version is not None,
            query={"alongside": ",".join(each.id for each in batch)},
        )

    async def _register(
        self,
        path: str,
        name: str,
        document: JsonObject,
        *,
        is_fixed: bool,
        query: Mapping[str, str] | None = None,
    ) -> str:
        if not is_fixed:
            newest = await self._newest(f"{path}/{segment(name)}")
            if newest is not None and same_content(newest, document):
                return newest
            document = versioned(document, newest)
        await self.connection.post(path, document, JsonObject, query=query)
        return str(document["version"])

    async def _newest(self, path: str) -> str | None:
        """The newest registered version, or None for what is not there yet."""
        try:
            found = await self.connection.get(path, JsonObject)
        except HostRefused as refusal:
            if refusal.code != "not_found":
                raise
            return None
        return str(found.get("version") or found.get("packVersion"))


def _with_children(flow: AnyWorkflow) -> list[AnyWorkflow]:
    """Return a workflow and all that it starts, children first where no two start each other."""
    found: list[AnyWorkflow] = []
    seen: set[int] = set()

    def visit(each: AnyWorkflow) -> None:
        if id(each) not in seen:
            seen.add(id(each))
            for child in each.children:
                visit(child)
            found.append(each)

    visit(flow)
    return found


@asynccontextmanager
async def connect(
    url: str | None = None,
    key: str | None = None,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncGenerator[Host, None]:
    """Connect to a host.

    What is not given comes from `WOPR_URL` and `WOPR_API_KEY`, or else from the file that
    `wopr serve` leaves in its data directory for this user.
    """
    place, secret = _found(url, key)
    headers = {"User-Agent": f"wopr/{__version__}", "Accept": "application/json"}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    parsed = httpx.URL(place)
    # A proxy of the environment is never the way to this same machine.
    async with httpx.AsyncClient(
        base_url=parsed,
        headers=headers,
        timeout=30.0,
        trust_env=parsed.host not in _LOOPBACK,
        transport=transport,
    ) as http:
        yield Host(Connection(http))


def _found(url: str | None, key: str | None) -> tuple[str, str | None]:
    noted = _noted()
    place = url or os.environ.get("WOPR_URL") or noted.get("url") or DEFAULT_URL
    secret = key or os.environ.get("WOPR_API_KEY")
    # The file's key is for the file's host: it is never sent to another.
    if not secret and noted.get("url", "").rstrip("/") == place.rstrip("/"):
        secret = noted.get("apiKey")
    return place, secret


def _noted() -> Mapping[str, str]:
    directory = Path(os.environ.get("WOPR_DATA_DIR") or "data")
    try:
        noted: Mapping[str, str] = json.loads((directory / "credentials.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return noted

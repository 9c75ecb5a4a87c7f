"""A client of a host: register workflows and agents, start runs, list runs and the inbox."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypedDict, TypeVar, Unpack, overload

import anyio
import httpx

from wopr.api.agent import Agent, agent_id
from wopr.api.client import DEFAULT_URL, Client, DecodedResponse, open_client
from wopr.api.errors import HostRefused
from wopr.api.run import Run
from wopr.api.workflow import AnyWorkflow, Workflow
from wopr.protocol.documents import JsonObject
from wopr.protocol.interrupts import InboxItem
from wopr.protocol.json_schema.conversion import to_json
from wopr.protocol.resources.reviews import CreateJudge, FeedbackSummary, Judge, SummaryBy
from wopr.protocol.runs import CreateRun, RunListItem
from wopr.protocol.suggestions import suggest_name
from wopr.runs.definitions.numbered_versions import add_version, has_content

In = TypeVar("In")
Out = TypeVar("Out")

_JUDGE_POLL_SECONDS: Final = 0.05


class RunFilters(TypedDict, total=False):
    """The filters of `GET /v1/runs`."""

    status: str
    workflowId: str
    tag: str
    parentRunId: str
    sourceRunId: str
    waitingForCode: str
    quarantined: bool
    since: str
    until: str
    flagged: bool
    rated: bool
    corrected: bool
    label: str
    limit: str | int
    cursor: str


class FeedbackFilters(TypedDict, total=False):
    """The filters of `GET /v1/feedback/summary`."""

    since: str
    until: str
    workflowId: str
    agentId: str


class InboxFilters(TypedDict, total=False):
    """The filters of `GET /v1/interrupts`."""

    kind: str
    workflowId: str
    runId: str
    limit: str | int
    cursor: str


def query_of(filters: Mapping[str, object], known: Mapping[str, object]) -> dict[str, str]:
    """Convert filters to a query. Raises `TypeError` for a filter that does not exist."""
    for name in filters:
        if name not in known:
            raise TypeError(f"there is no filter {name!r}: {suggest_name(name, known)}")
    return {name: _query_text(value) for name, value in filters.items()}


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Host:
    """A client of a host. `connect` and `wopr.testing.memory_host` return it.

    Example:
        >>> from wopr import connect
        >>> async def main() -> None:
        ...     async with connect("http://127.0.0.1:8642", "my-key") as host:
        ...         run = await host.start("hello", {"name": "Ada"})
        ...         print(await run.result())
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def register(self, what: Workflow[In, Out] | Agent | JsonObject) -> str:
        """Register a workflow or an agent.

        A workflow or an agent without a fixed version gets a new version if its content has
        changed. A document is registered unchanged.

        Args:
            what: A workflow, an agent, or the document of one.

        Returns:
            The registered version.

        Raises:
            WorkflowError: The workflow has errors.
            HostError: The host refused the workflow or agent, or did not respond.

        Example:
            >>> from wopr import Agent, Host
            >>> async def install(host: Host, agent: Agent) -> None:
            ...     version = await host.register(agent)
            ...     print(agent.id, version)
        """
        if isinstance(what, Workflow):
            batch = _with_children(what)
            versions = {each.id: await self._register_workflow(each, batch) for each in batch}
            return versions[what.id]
        if isinstance(what, Agent):
            return await self._register_agent(what)
        if "agentId" in what:
            await self._client.add_agent(what)
        else:
            await self._client.add_workflow(what)
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
        """Start a run. A workflow built in Python is registered first.

        Args:
            workflow: A workflow, or the id of a registered one.
            inputs: The inputs, of the workflow's input type or as an object.
            tags: Tags for filters of runs.
            configurable: Values that nodes read as `configurable`.
            metadata: Metadata to store with the run.
            idempotency_key: A key of your choice. A second call with the same key returns the
                first run.

        Returns:
            The run. `await run.result()` waits for its outputs.

        Raises:
            WorkflowError: The workflow or the inputs have errors.
            HostError: The host refused the run or did not respond.
        """
        given: JsonObject
        if isinstance(workflow, Workflow):
            await self.register(workflow)
            given = workflow.inputs_json(inputs)
        else:
            given = {} if inputs is None else to_json(inputs)
        body = CreateRun(
            workflow_id=workflow if isinstance(workflow, str) else workflow.id,
            inputs=given,
            tags=list(tags),
            configurable=configurable or {},
            metadata=metadata or {},
        )
        accepted = (await self._client.create_run(body, idempotency_key)).document
        if isinstance(workflow, str):
            return self.run(accepted.run_id)
        return Run(self._client, accepted.run_id, workflow.outputs_type)

    def run(self, run_id: str) -> Run[JsonObject]:
        """Return a run by its id. This makes no request.

        Args:
            run_id: The run's id.

        Returns:
            The run. Its outputs are an object.
        """
        return Run(self._client, run_id, dict)

    async def runs(self, **filters: Unpack[RunFilters]) -> list[RunListItem]:
        """List runs, newest first.

        Args:
            **filters: The filters of `GET /v1/runs`, such as `status` and `workflowId`.

        Returns:
            One page of runs.

        Raises:
            TypeError: A filter does not exist.
            HostError: The host refused the call or did not respond.

        Example:
            >>> from wopr import Host
            >>> async def show(host: Host) -> None:
            ...     for run in await host.runs(status="failed", limit=10):
            ...         print(run.run_id, run.workflow_id)
        """
        query = query_of(filters, RunFilters.__annotations__)
        return (await self._client.runs(query)).document.items

    async def inbox(self, **filters: Unpack[InboxFilters]) -> list[InboxItem]:
        """List open interrupts, newest first.

        An interrupt is an approval, a question or a decision that waits for a person.

        Args:
            **filters: The filters of `GET /v1/interrupts`, such as `kind` and `runId`.

        Returns:
            One page of open interrupts.

        Raises:
            TypeError: A filter does not exist.
            HostError: The host refused the call or did not respond.

        Example:
            >>> from wopr import Host
            >>> async def accept_all(host: Host) -> None:
            ...     for item in await host.inbox(kind="approval"):
            ...         await host.run(item.run_id).answer("accept", node=item.node_id)
        """
        query = query_of(filters, InboxFilters.__annotations__)
        return (await self._client.inbox(query)).document.items

    async def feedback(
        self, by: SummaryBy = "workflow", **filters: Unpack[FeedbackFilters]
    ) -> FeedbackSummary:
        """Count annotations, with the mean rating and the rates of each group.

        Args:
            by: The property to group by.
            **filters: The filters of `GET /v1/feedback/summary`, such as `since`.

        Returns:
            The groups and their total.

        Raises:
            TypeError: A filter does not exist.
            HostError: The host refused the call or did not respond.

        Example:
            >>> from wopr import Host
            >>> async def show(host: Host) -> None:
            ...     summary = await host.feedback("agent", since="2026-01-01T00:00:00Z")
            ...     print(summary.total, len(summary.groups))
        """
        query = query_of(filters, FeedbackFilters.__annotations__) | {"by": by}
        return (await self._client.feedback_summary(query)).document

    async def judge(
        self, workflow: Workflow[In, Out] | str, agent: Agent | str, runs: Sequence[str]
    ) -> Judge:
        """Let a workflow judge finished runs, and wait for the end.

        Args:
            workflow: The workflow that judges one run. Its outputs are the annotation.
            agent: The agent that is stored as the author of the annotations.
            runs: The ids of the runs.

        Returns:
            The judge. Every run has an annotation, or a reason why it has none.

        Raises:
            WorkflowError: The workflow has errors.
            HostError: The host refused the call or did not respond.

        Example:
            >>> from wopr import Host
            >>> async def judge_all(host: Host) -> None:
            ...     runs = [run.run_id for run in await host.runs(status="completed")]
            ...     judge = await host.judge("acme.judge", "acme.judge", runs)
            ...     print(judge.counts)
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
        judge = (await self._client.create_judge(body)).document
        while judge.state != "done":
            await anyio.sleep(_JUDGE_POLL_SECONDS)
            judge = (await self._client.judge(judge.judge_id)).document
        return judge

    async def _register_agent(self, agent: Agent) -> str:
        manifest = agent.manifest()
        if agent.version is None:
            newest = await _version_or_none(self._client.agent(agent.id))
            if newest is not None and has_content(newest, manifest):
                return newest
            manifest = add_version(manifest, newest)
        await self._client.add_agent(manifest)
        return str(manifest["version"])

    async def _register_workflow(self, flow: AnyWorkflow, batch: Sequence[AnyWorkflow]) -> str:
        """Register one workflow of a batch whose members may start each other."""
        for agent in flow.agents:
            await self.register(agent)
        document = flow.document()
        if flow.version is None:
            newest = await _version_or_none(self._client.workflow(flow.id))
            if newest is not None and has_content(newest, document):
                return newest
            document = add_version(document, newest)
        await self._client.add_workflow(document, [each.id for each in batch])
        return str(document["version"])


async def _version_or_none(read: Awaitable[DecodedResponse[JsonObject]]) -> str | None:
    """Return the newest registered version; None if nothing is registered."""
    try:
        found = (await read).document
    except HostRefused as refusal:
        if refusal.code != "not_found":
            raise
        return None
    return str(found.get("version") or found.get("packVersion"))


def _with_children(flow: AnyWorkflow) -> list[AnyWorkflow]:
    """Return a workflow and the workflows that it starts, children first except in a cycle."""
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

    Args:
        url: The address of the host. The default is `WOPR_URL`, then the credentials file that
            `wopr serve` writes into its data directory, then `http://127.0.0.1:8642`.
        key: The API key. The default is `WOPR_API_KEY`, then the key in the credentials file.
        transport: A replacement for the HTTP transport, for tests.

    Yields:
        The host.

    Raises:
        httpx.InvalidURL: `url` is not a URL.

    Example:
        >>> from wopr import connect
        >>> async def main() -> None:
        ...     async with connect() as host:
        ...         for item in await host.inbox():
        ...             print(item.question)
    """
    async with open_client(*_url_and_key(url, key), transport=transport) as client:
        yield Host(client)


def _url_and_key(url: str | None, key: str | None) -> tuple[str, str | None]:
    saved = _saved_credentials()
    address = url or os.environ.get("WOPR_URL") or saved.get("url") or DEFAULT_URL
    secret = key or os.environ.get("WOPR_API_KEY")
    # The key in the file is sent only to the URL in the file.
    if not secret and saved.get("url", "").rstrip("/") == address.rstrip("/"):
        secret = saved.get("apiKey")
    return address, secret


def _saved_credentials() -> Mapping[str, str]:
    directory = Path(os.environ.get("WOPR_DATA_DIR") or "data")
    try:
        saved: Mapping[str, str] = json.loads((directory / "credentials.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return saved

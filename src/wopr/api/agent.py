"""Agents in Python: name, model, tools and confidence threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from wopr.agents.manifests import check_manifest
from wopr.agents.mcp.servers import McpServer
from wopr.agents.models.port import split_model
from wopr.agents.tools.tool import LOCAL, Tool
from wopr.api.errors import WorkflowError, faults_of
from wopr.api.schemas import schema_for
from wopr.api.tools import as_tool
from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused
from wopr.protocol.manifests import ManifestModelClass
from wopr.runs.definitions.numbered_versions import add_version

_SCOPES: Final = frozenset({"core", "vendor", "community", "private", "local"})
# A tool, a function, the named tools of an MCP server, or the name of a tool of the host.
AgentTool: TypeAlias = "Tool | Callable[..., Any] | McpServer | str"


class Agent:
    """An agent: a model with instructions and tools.

    Args:
        name: The agent's id. A name without a scope of the protocol gets the scope `local`:
            `acme.support.triage` becomes `local.acme.support.triage`.
        model: The provider and the model, such as `anthropic:claude-sonnet-4-5`.
        instructions: The system prompt.
        tools: The tools that the agent may call: functions, MCP servers, or names of tools of the
            host.
        threshold: The confidence that a decision needs, from 0 to 1. A decision with a lower
            confidence waits in the inbox.
        output: The type of the agent's result. Without it, the result is a text.
        handoffs: The agents that it may hand over to, each with the condition for the handoff.
        persona: A display name. The default is derived from the id.
        description: A description for the inventory.
        model_class: The class of work, such as `classification`.
        credentials_ref: The name of the tenant's credential for the model provider.
        options: More members of the config of the agent's nodes.
        sharing: The conversation that the model sees: `isolated` for the node's own conversation,
            `shared` for one conversation of all nodes with `shared`, or `shared:<group>`.
        version: A fixed version. Without it, the version is derived from the content.

    Attributes:
        id: The agent's id, with its scope.
        model: The provider and the model.
        tools: The tools that are functions of this program.

    Raises:
        WorkflowError: The declaration has errors.

    Example:
        >>> from wopr import Agent, tool
        >>> @tool
        ... async def search_orders(customer: str) -> list[str]:
        ...     "Find the orders of a customer."
        ...     return []
        >>> triage = Agent("acme.triage", model="scripted:triage", tools=[search_orders])
        >>> triage.id
        'local.acme.triage'
    """

    __wopr_hint__: ClassVar = "an agent: use `agent(...)` to add a node for it"

    def __init__(
        self,
        name: str,
        *,
        model: str,
        instructions: str = "",
        tools: Sequence[AgentTool] = (),
        threshold: float | None = None,
        output: type[Any] | None = None,
        handoffs: Mapping[Agent | str, str] | None = None,
        persona: str = "",
        description: str = "",
        model_class: ManifestModelClass = "general",
        credentials_ref: str = "",
        options: JsonObject | None = None,
        sharing: str = "isolated",
        version: str | None = None,
    ) -> None:
        _check_arguments(name, model, tools, output)
        self.id = agent_id(name)
        self.model = model
        self.version = version
        self.threshold = threshold
        self.output = output
        self.credentials_ref = credentials_ref
        self.mcp_servers = tuple(each for each in tools if isinstance(each, McpServer))
        resolved = [each if isinstance(each, str | McpServer) else as_tool(each) for each in tools]
        self.tools = tuple(each for each in resolved if not isinstance(each, str | McpServer))
        self._names = [name for each in resolved for name in _names_of(each)]
        self._instructions = instructions or f"You are {self.id}."
        self._persona = persona or self.id.rpartition(".")[2].replace("-", " ").title()
        self._description = description
        self._model_class: ManifestModelClass = model_class
        self._handoffs = {agent_id(to): when for to, when in (handoffs or {}).items()}
        self._options = options or {}
        self._sharing = sharing
        self._check()

    def __repr__(self) -> str:
        return f"<Agent {self.id} on {self.model}>"

    def manifest(self) -> JsonObject:
        """Return the manifest for `POST /v1/agents`.

        Returns:
            The manifest. Its version is fixed, or derived from the content.
        """
        manifest: JsonObject = {
            "agentId": self.id,
            "persona": self._persona,
            "modelClass": self._model_class,
            "systemPrompt": self._instructions,
            "toolAllowlist": self._names,
        }
        if self._description:
            manifest["description"] = self._description
        if self.threshold is not None:
            manifest["confidence"] = {"defaultThreshold": self.threshold}
        return (
            add_version(manifest) if self.version is None else manifest | {"version": self.version}
        )

    def supervisor_config(self) -> JsonObject:
        """Return the config of a supervisor node of this agent.

        Returns:
            The config.
        """
        config: JsonObject = {"model": self.model} | self._options
        return config if self._sharing == "isolated" else config | {"agentSharing": self._sharing}

    def node_config(self) -> JsonObject:
        """Return the config of an `openwop.llm.agent` node of this agent.

        Returns:
            The config.
        """
        config = self.supervisor_config()
        if any(not each.name.startswith(f"{LOCAL}:") for each in self.tools):
            # A host ignores unknown tools with other scopes. These are functions, so it knows them.
            config["tools"] = self._names
        if self.output is not None:
            config["schema"] = schema_for(self.output)
        if self._handoffs:
            config["handoffs"] = self._handoffs
        if self.threshold is not None:
            config["asksConfidence"] = True
        return config

    def _check(self) -> None:
        for server in self.mcp_servers:
            if not server.tool_names:
                fault = f"MCP server {server.name} has no tools: use mcp_server(..., tools=[...])"
                raise WorkflowError(f"agent {self.id}", [fault])
        try:
            check_manifest(self.manifest())
        except Refused as refusal:
            faults = [_with_example(fault) for fault in faults_of(refusal)]
            raise WorkflowError(f"agent {self.id}", faults) from refusal


def agent_id(agent: Agent | str) -> str:
    """Return the id of an agent. A name without a scope of the protocol gets the scope `local`."""
    if isinstance(agent, Agent):
        return agent.id
    return agent if agent.partition(".")[0] in _SCOPES else f"local.{agent}"


def _with_example(fault: str) -> str:
    """Add an example to an error of the id, because its message shows only a pattern."""
    return f"{fault}; such as acme.support.triage" if fault.startswith("agentId:") else fault


def _check_arguments(name: str, model: str, tools: object, output: object) -> None:
    """Check the arguments that are not in the manifest. Raises `WorkflowError`."""
    faults: list[str] = []
    try:
        split_model(model)
    except NodeFailure as fault:
        faults.append(str(fault))
    if isinstance(tools, str):
        faults.append(f"tools must be a list, not {tools!r}")
    if output is not None:
        try:
            schema_for(output)
        except TypeError as fault:
            faults.append(f"output: {fault}")
    if faults:
        raise WorkflowError(f"agent {name}", faults)


def _names_of(each: Tool | McpServer | str) -> list[str]:
    """Return the names of a tool, or of the tools of a server, in an allowlist."""
    if isinstance(each, McpServer):
        return each.tool_names
    return [each if isinstance(each, str) else each.name]

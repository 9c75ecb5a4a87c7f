"""Agents written in Python: who one is, which model it asks, what it may call, how sure it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from wopr.agents.manifests import check_manifest
from wopr.agents.mcp_servers import McpServer
from wopr.api.errors import WorkflowError
from wopr.api.refusals import faults_of
from wopr.api.shapes import shape_of
from wopr.api.tools import as_tool
from wopr.engine.outcome import NodeFailure
from wopr.nodes.models import split_model
from wopr.nodes.tools import LOCAL, Tool
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused
from wopr.protocol.manifests import ManifestModelClass
from wopr.runtime.numbering import versioned

_SCOPES: Final = frozenset({"core", "vendor", "community", "private", "local"})
# A tool itself, a function that is one, the named tools of an MCP server, or the name of a tool that
# the host has.
AgentTool: TypeAlias = "Tool | Callable[..., Any] | McpServer | str"


class Agent:
    """An agent. Its manifest is what `POST /v1/agents` takes.

    A name without one of the protocol's scopes is put into `local`: `acme.support.triage` becomes
    `local.acme.support.triage`. With a `threshold` it must say how sure it is, and what is less sure
    waits in the inbox. `output` is the type of its answer; without one the answer is text.
    `sharing` is the context of its nodes: `isolated`, `shared` by all nodes of a run that say so, or
    `shared:<group>`.
    """

    __wopr_belongs__: ClassVar = "an agent: its nodes are added with `agent(...)`"

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
        # The tools that are functions of this program; names belong to the host.
        made = [each if isinstance(each, str | McpServer) else as_tool(each) for each in tools]
        self.tools = tuple(each for each in made if not isinstance(each, str | McpServer))
        self._names = [name for each in made for name in _names_of(each)]
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
        """The manifest, numbered by its content unless the agent has a version of its own."""
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
        return versioned(manifest) if self.version is None else manifest | {"version": self.version}

    def supervisor_config(self) -> JsonObject:
        """The config of the supervisor node whose decisions this agent's model takes."""
        config: JsonObject = {"model": self.model} | self._options
        return config if self._sharing == "isolated" else config | {"agentSharing": self._sharing}

    def node_config(self) -> JsonObject:
        """The config of the `openwop.llm.agent` node that lets this agent work."""
        config = self.supervisor_config()
        if any(not each.name.startswith(f"{LOCAL}:") for each in self.tools):
            # Names in other scopes may be tools that a host need not have; these are functions.
            config["tools"] = self._names
        if self.output is not None:
            config["schema"] = shape_of(self.output)
        if self._handoffs:
            config["handoffs"] = self._handoffs
        if self.threshold is not None:
            config["asksConfidence"] = True
        return config

    def _check(self) -> None:
        for server in self.mcp_servers:
            if not server.tool_names:
                fault = f"name the tools of {server.name}: mcp_server(..., tools=[...])"
                raise WorkflowError(f"agent {self.id}", [fault])
        try:
            check_manifest(self.manifest())
        except Refused as refusal:
            faults = [_with_example(fault) for fault in faults_of(refusal)]
            raise WorkflowError(f"agent {self.id}", faults) from refusal


def agent_id(agent: Agent | str) -> str:
    """The id of an agent; a name without one of the protocol's scopes is put into `local`."""
    if isinstance(agent, Agent):
        return agent.id
    return agent if agent.partition(".")[0] in _SCOPES else f"local.{agent}"


def _with_example(fault: str) -> str:
    """A pattern says what a name must be, and an example says it faster."""
    return f"{fault}; such as acme.support.triage" if fault.startswith("agentId:") else fault


def _check_arguments(name: str, model: str, tools: object, output: object) -> None:
    """Refuse what a manifest cannot tell: a model without a provider, a text in place of a list."""
    faults: list[str] = []
    try:
        split_model(model)
    except NodeFailure as fault:
        faults.append(str(fault))
    if isinstance(tools, str):
        faults.append(f"tools: give a list, not {tools!r}")
    if output is not None:
        try:
            shape_of(output)
        except TypeError as fault:
            faults.append(f"output: {fault}")
    if faults:
        raise WorkflowError(f"agent {name}", faults)


def _names_of(each: Tool | McpServer | str) -> list[str]:
    """What an allowlist calls it."""
    if isinstance(each, McpServer):
        return each.tool_names
    return [each if isinstance(each, str) else each.name]

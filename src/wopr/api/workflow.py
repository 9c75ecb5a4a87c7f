"""Workflows written in Python: nodes, edges and types, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, overload

import msgspec

from wopr.api.agent import Agent
from wopr.api.building import graph_faults, host_faults, wire_edges
from wopr.api.errors import WorkflowError
from wopr.api.graph import NO_SETTINGS, Graph, checked_settings
from wopr.api.nodes import Node
from wopr.api.shapes import members, required, shape_of
from wopr.api.types import (
    AGENT,
    APPROVAL,
    CLARIFICATION,
    END,
    SET_VARIABLE,
    SUB_WORKFLOW,
    agent_outputs,
    node_type_of,
)
from wopr.api.values import Inputs, Variable, port_of, value_faults
from wopr.api.variables import declared, variables_of
from wopr.engine.fold_agents import SUPERVISOR
from wopr.nodes.typed import from_json, to_json
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.protocol.interrupts import ApprovalAction
from wopr.protocol.workflow import (
    NodeSettings,
    WorkflowDefinition,
    WorkflowMetadata,
    WorkflowNode,
    WorkflowSettings,
)
from wopr.runtime.numbering import versioned

In = TypeVar("In")
Out = TypeVar("Out")
# The same in the signatures that name only one of them.
GivenIn = TypeVar("GivenIn")
GivenOut = TypeVar("GivenOut")
AnyWorkflow: TypeAlias = "Workflow[Any, Any]"

_WORKFLOW_SETTINGS = WorkflowSettings()
_PROMPT: Final[JsonObject] = {"properties": {"prompt": {"type": "string"}}}


class Workflow(Graph, Generic[In, Out]):
    """A workflow that is being built.

    `inputs` and `outputs` are a dataclass, a struct, a `TypedDict` or a pydantic model; without
    them any object will do. Without a `version` of its own it is numbered by its content.
    """

    __wopr_belongs__: ClassVar = "a workflow: one within another is added with `sub(...)`"

    @overload
    def __init__(
        self: Workflow[JsonObject, JsonObject],
        name: str,
        *,
        title: str = "",
        version: str | None = None,
        settings: WorkflowSettings = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Workflow[GivenIn, JsonObject],
        name: str,
        *,
        inputs: type[GivenIn],
        title: str = "",
        version: str | None = None,
        settings: WorkflowSettings = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Workflow[JsonObject, GivenOut],
        name: str,
        *,
        outputs: type[GivenOut],
        title: str = "",
        version: str | None = None,
        settings: WorkflowSettings = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        inputs: type[In],
        outputs: type[Out],
        title: str = "",
        version: str | None = None,
        settings: WorkflowSettings = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        inputs: type[Any] = dict,
        outputs: type[Any] = dict,
        title: str = "",
        version: str | None = None,
        settings: WorkflowSettings = _WORKFLOW_SETTINGS,
    ) -> None:
        super().__init__(name)
        self.version = version
        self.inputs_type: type[In] = inputs
        self.outputs_type: type[Out] = outputs
        self.inputs = Inputs(f"inputs of {name}", shape_of(inputs))
        self._title = title or name
        self._settings = settings
        self._variables = variables_of(shape_of(inputs))
        self._children: list[AnyWorkflow] = []

    def __repr__(self) -> str:
        return f"<Workflow {self.id}: {', '.join(self.nodes) or 'empty'}>"

    @property
    def children(self) -> tuple[AnyWorkflow, ...]:
        """The workflows that it starts, as far as they are written in Python too."""
        return tuple(self._children)

    def variable(self, name: str, kind: Any = Any, *, default: Json = UNSET) -> Variable:
        """Declare a variable that nodes set, beside the inputs."""
        if name in self._variables:
            raise WorkflowError(f"workflow {self.id}", [f"variable {name!r} is there already"])
        shape = shape_of(kind)
        found = declared(name, shape, is_required=False, default=default)
        self._variables[name] = found
        return Variable(name, shape)

    def set(
        self,
        node_id: str,
        variable: Variable,
        value: object,
        /,
        *,
        settings: NodeSettings = NO_SETTINGS,
    ) -> Node:
        """Set a variable. A parent workflow can read it."""
        config = {"name": variable.name}
        return self.node(node_id, SET_VARIABLE, config, {"value": value}, settings)

    def agent(
        self,
        node_id: str,
        agent: Agent,
        /,
        *,
        prompt: object,
        config: JsonObject | None = None,
        sharing: str | None = None,
        settings: NodeSettings = NO_SETTINGS,
        **inputs: object,
    ) -> Node:
        """Let an agent work. Text given as `prompt` is yours; what the run gives is data to the model.

        The node's outputs are `result` of the agent's output type, or `text`; with a threshold also
        `confidence`. `sharing` says which conversation the model knows: `isolated`, `shared`, or
        `shared:<group>`; without it the agent's own.
        `settings` are the node's retries, timeout and backoff.
        """
        if not isinstance(agent, Agent):
            raise WorkflowError(f"node {node_id}", [f"{agent!r} is no agent: give an Agent(...)"])
        own: JsonObject = {"prompt": prompt} if isinstance(prompt, str) else {}
        shared: JsonObject = {} if sharing is None else {"agentSharing": sharing}
        given = inputs if own else {"prompt": prompt, **inputs}
        return self.put(
            WorkflowNode(
                id=node_id,
                type_id=AGENT,
                name=node_id,
                position=self.position(),
                config=agent.node_config() | own | shared | (config or {}),
                inputs={key: port_of(value) for key, value in given.items()},
                settings=checked_settings(node_id, settings),
                agent=AgentRef(agent_id=agent.id),
                credentials_ref=agent.credentials_ref or UNSET,
            ),
            node_type_of(AGENT),
            outputs=agent_outputs(agent.output),
            agent=agent,
            faults=list(value_faults({"prompt": prompt}, _PROMPT, [])),
        )

    def supervisor(
        self,
        node_id: str,
        agent: Agent,
        /,
        *,
        prompt: str,
        workers: Mapping[AnyWorkflow | str, str],
        config: JsonObject | None = None,
        **inputs: object,
    ) -> Node:
        """Let an agent's model decide which worker is next, what to ask a person, or to stop.

        `workers` says of each workflow what it is for; they are registered with this one. A node
        of the type `core.dispatch` carries the decisions out: `lead >> dispatch >> lead`. The
        output `decision` is the decision.
        """
        if not isinstance(agent, Agent):
            raise WorkflowError(f"node {node_id}", [f"{agent!r} is no agent: give an Agent(...)"])
        self.uses(*(each for each in workers if isinstance(each, Workflow)))
        named = {each if isinstance(each, str) else each.id: why for each, why in workers.items()}
        own: JsonObject = {"prompt": prompt, "workers": named}
        return self.put(
            WorkflowNode(
                id=node_id,
                type_id=SUPERVISOR,
                name=node_id,
                position=self.position(),
                config=agent.supervisor_config() | own | (config or {}),
                inputs={key: port_of(value) for key, value in inputs.items()},
                agent=AgentRef(agent_id=agent.id),
                credentials_ref=agent.credentials_ref or UNSET,
            ),
            node_type_of(SUPERVISOR),
            outputs={"properties": {"decision": {"type": "object"}}},
            agent=agent,
        )

    def approval(
        self,
        node_id: str,
        title: str,
        /,
        *,
        artifact: object = UNSET,
        actions: Sequence[ApprovalAction] = ("accept", "reject"),
        required_approvals: int = 1,
        timeout: float = 0,
        settings: NodeSettings = NO_SETTINGS,
        **config: Json,
    ) -> Node:
        """Wait for an approval. `artifact` is what the approver sees, `timeout` is in seconds."""
        shown = {} if artifact is UNSET else {"artifact": artifact}
        asked: JsonObject = {
            "title": title,
            "actions": list(actions),
            "requiredApprovals": required_approvals,
            "timeoutMs": round(timeout * 1000),
        }
        return self.node(node_id, APPROVAL, asked | config, shown, settings)

    def ask(
        self, node_id: str, /, *, settings: NodeSettings = NO_SETTINGS, **questions: str
    ) -> Node:
        """Wait for answers; the output `answers` has one for each question."""
        asked = [{"id": name, "question": text} for name, text in questions.items()]
        return self.node(node_id, CLARIFICATION, {"questions": asked}, {}, settings)

    def sub(
        self,
        node_id: str,
        workflow: AnyWorkflow | str,
        /,
        *,
        into: Mapping[str, str] | None = None,
        settings: NodeSettings = NO_SETTINGS,
        **inputs: object,
    ) -> Node:
        """Run another workflow and wait for it; `into` sets own variables from the child's."""
        faults: list[str] = []
        if isinstance(workflow, Workflow):
            self.uses(workflow)
            shape = shape_of(workflow.inputs_type)
            faults = list(value_faults(inputs, shape, required(shape)))
        child = workflow if isinstance(workflow, str) else workflow.id
        config = {"workflowId": child, "outputMapping": dict(into or {})}
        node = self.node(node_id, SUB_WORKFLOW, config, inputs, settings)
        node.faults += tuple(faults)
        return node

    def uses(self, *workflows: AnyWorkflow) -> None:
        """Name workflows that this one starts, so that they are registered with it."""
        self._children += [each for each in workflows if each not in self._children]

    def end(self, node_id: str = "end", /, **outputs: object) -> Node:
        """End here; the values become the run's outputs and are checked against their type."""
        shape = shape_of(self.outputs_type)
        wire = WorkflowNode(
            id=node_id,
            type_id=END,
            name=node_id,
            position=self.position(),
            config={},
            inputs={key: port_of(value) for key, value in outputs.items()},
            output_role="primary",
        )
        faults = [
            fault.replace("input", "output", 1)
            for fault in value_faults(outputs, shape, required(shape))
        ]
        return self.put(wire, node_type_of(END), faults=faults)

    def build(self) -> WorkflowDefinition:
        """Check everything and give the definition. Raises `WorkflowError` with every fault."""
        return msgspec.convert(self.document(), WorkflowDefinition)

    def document(self) -> JsonObject:
        """The checked definition as `POST /v1/workflows` takes it."""
        document: JsonObject = msgspec.to_builtins(
            WorkflowDefinition(
                id=self.id,
                name=self._title,
                version=self.version or "0",
                nodes=[node.wire for node in self.nodes.values()],
                edges=wire_edges(self.edges),
                triggers=[],
                variables=list(self._variables.values()),
                metadata=WorkflowMetadata(),
                settings=self._settings,
            )
        )
        numbered = versioned(document) if self.version is None else document
        faults = [*self._faults()] or host_faults(numbered, self.node_types)
        if faults:
            raise WorkflowError(f"workflow {self.id}", faults)
        return numbered

    def given(self, inputs: object) -> JsonObject:
        """A run's inputs as JSON. Raises `WorkflowError` where they are not of the inputs' type."""
        plain: JsonObject = {} if inputs is None else to_json(inputs)
        try:
            from_json(plain, self.inputs_type)
        except msgspec.ValidationError as fault:
            raise WorkflowError(f"inputs of {self.id}", [str(fault)]) from fault
        # What may be absent is absent: `null` is no value of a variable's type.
        return {name: value for name, value in plain.items() if value is not None}

    def _faults(self) -> Iterator[str]:
        yield from graph_faults(self.nodes, self.edges)
        is_given = any(node.wire.type_id == END for node in self.nodes.values())
        if members(shape_of(self.outputs_type)) and not is_given:
            yield f"outputs are {self.outputs_type.__name__}, and no end() gives them"

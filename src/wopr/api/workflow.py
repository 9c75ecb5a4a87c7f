"""Workflows in Python: nodes and edges, checked before a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, overload

import msgspec

from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.api.graph import (
    NO_SETTINGS,
    Graph,
    checked_settings,
    graph_faults,
    host_faults,
    wire_edges,
)
from wopr.api.node_types import (
    AGENT,
    APPROVAL,
    CLARIFICATION,
    END,
    SET_VARIABLE,
    SUB_WORKFLOW,
    agent_outputs,
    node_type_of,
)
from wopr.api.nodes import Inputs, Node, Variable, port_of, value_faults
from wopr.api.schemas import members, required, schema_for, variable_of, variables_of
from wopr.engine.fold.agents import SUPERVISOR
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.protocol.interrupts import ApprovalAction
from wopr.protocol.json_schema.conversion import from_json, to_json
from wopr.protocol.workflow import (
    NodeSettings,
    WorkflowDefinition,
    WorkflowMetadata,
    WorkflowNode,
    WorkflowSettings,
)
from wopr.runs.definitions.numbered_versions import add_version

In = TypeVar("In")
Out = TypeVar("Out")
# Type variables for the signatures with only one of the two types.
GivenIn = TypeVar("GivenIn")
GivenOut = TypeVar("GivenOut")
AnyWorkflow: TypeAlias = "Workflow[Any, Any]"

_WORKFLOW_SETTINGS = WorkflowSettings()
_PROMPT: Final[JsonObject] = {"properties": {"prompt": {"type": "string"}}}


class Workflow(Graph, Generic[In, Out]):
    """A workflow that is built in Python.

    Args:
        name: The workflow's id.
        inputs: The type of a run's inputs: a dataclass, a `msgspec.Struct`, a `TypedDict` or a
            pydantic model. Without it, any object is accepted.
        outputs: The type of a run's outputs, as for `inputs`.
        title: A display title. The default is the id.
        version: A fixed version. Without it, the version is derived from the content.
        settings: Settings of all runs, such as a timeout.

    Attributes:
        id: The workflow's id.
        inputs: The inputs of a run, as inputs for nodes: `flow.inputs.customer`.

    Raises:
        TypeError: A type has no JSON Schema.

    Example:
        >>> from dataclasses import dataclass
        >>> from wopr import Workflow
        >>> @dataclass
        ... class Order:
        ...     total: float
        >>> flow = Workflow("order", inputs=Order)
        >>> review = flow.approval("review", "Pay this?", artifact=flow.inputs.total)
        >>> _ = review.when("outputs.approved") >> flow.end()
        >>> [node.id for node in flow.build().nodes]
        ['review', 'end']
    """

    __wopr_hint__: ClassVar = "a workflow: use `sub(...)` to run it in another workflow"

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
        self.inputs = Inputs(f"inputs of {name}", schema_for(inputs))
        self._title = title or name
        self._settings = settings
        self._variables = variables_of(schema_for(inputs))
        self._children: list[AnyWorkflow] = []

    def __repr__(self) -> str:
        return f"<Workflow {self.id}: {', '.join(self.nodes) or 'empty'}>"

    @property
    def children(self) -> tuple[AnyWorkflow, ...]:
        """The workflows that this workflow starts and that are also built in Python."""
        return tuple(self._children)

    def variable(self, name: str, kind: Any = Any, *, default: Json = UNSET) -> Variable:
        """Declare a variable that nodes can set and read.

        Args:
            name: The variable's name.
            kind: The Python type of its values.
            default: The value before a node sets it.

        Returns:
            The variable, as an input for nodes and for `set`.

        Raises:
            WorkflowError: An input or a variable with this name exists.
            TypeError: `kind` has no JSON Schema.

        Example:
            >>> from wopr import Workflow
            >>> flow = Workflow("order")
            >>> state = flow.variable("state", str, default="new")
            >>> _ = flow.set("paid", state, "paid") >> flow.end(state=state)
        """
        if name in self._variables:
            raise WorkflowError(f"workflow {self.id}", [f"there already is a variable {name!r}"])
        schema = schema_for(kind)
        self._variables[name] = variable_of(name, schema, is_required=False, default=default)
        return Variable(name, schema)

    def set(
        self,
        node_id: str,
        variable: Variable,
        value: object,
        /,
        *,
        settings: NodeSettings = NO_SETTINGS,
    ) -> Node:
        """Add a node that sets a variable.

        Args:
            node_id: The node's id.
            variable: The variable, as `variable` returned it.
            value: The new value, as for the inputs of `add`.
            settings: Retries, timeout and backoff.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used.
        """
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
        """Add a node in which an agent works on a prompt.

        The node's outputs are `result`, of the agent's output type, or `text`. With a threshold,
        there is also the output `confidence`.

        Args:
            node_id: The node's id.
            agent: The agent.
            prompt: The task. A text is trusted as an instruction. A value of the run, such as
                `flow.inputs.text`, is given to the model as data.
            config: Members of the node's config to replace.
            sharing: The conversation that the model sees, as for `Agent`. The default is that of
                the agent.
            settings: Retries, timeout and backoff.
            **inputs: More inputs, which the model gets as data.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used, or `agent` is not an `Agent`.

        Example:
            >>> from wopr import Agent, Workflow
            >>> triage = Agent("acme.triage", model="openai:gpt-4o")
            >>> flow = Workflow("support")
            >>> team = flow.agent("triage", triage, prompt="Which team answers?", text="My bill?")
            >>> _ = team >> flow.end(team=team["text"])
        """
        if not isinstance(agent, Agent):
            raise WorkflowError(f"node {node_id}", [f"{agent!r} is not an agent: use Agent(...)"])
        fixed: JsonObject = {"prompt": prompt} if isinstance(prompt, str) else {}
        shared: JsonObject = {} if sharing is None else {"agentSharing": sharing}
        given = inputs if fixed else {"prompt": prompt, **inputs}
        return self._put(
            WorkflowNode(
                id=node_id,
                type_id=AGENT,
                name=node_id,
                position=self._position(),
                config=agent.node_config() | fixed | shared | (config or {}),
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
        """Add a node in which an agent chooses the next worker, asks a person, or stops.

        A node of the type `core.dispatch` executes the decisions: `lead >> dispatch >> lead`. The
        output `decision` is the decision.

        Args:
            node_id: The node's id.
            agent: The agent that decides.
            prompt: The task.
            workers: The workflows that can be started, each with its purpose. Workflows built in
                Python are registered together with this workflow.
            config: Members of the node's config to replace.
            **inputs: More inputs, which the model gets as data.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used, or `agent` is not an `Agent`.

        Example:
            >>> from wopr import Agent, Workflow
            >>> lead = Agent("acme.lead", model="openai:gpt-4o")
            >>> flow = Workflow("research")
            >>> workers = {"acme.search": "find sources", "acme.write": "write the report"}
            >>> decide = flow.supervisor("lead", lead, prompt="Write a report.", workers=workers)
            >>> dispatch = flow.add("dispatch", "core.dispatch")
            >>> _ = decide >> dispatch >> decide
        """
        if not isinstance(agent, Agent):
            raise WorkflowError(f"node {node_id}", [f"{agent!r} is not an agent: use Agent(...)"])
        self.uses(*(each for each in workers if isinstance(each, Workflow)))
        named = {each if isinstance(each, str) else each.id: why for each, why in workers.items()}
        fixed: JsonObject = {"prompt": prompt, "workers": named}
        return self._put(
            WorkflowNode(
                id=node_id,
                type_id=SUPERVISOR,
                name=node_id,
                position=self._position(),
                config=agent.supervisor_config() | fixed | (config or {}),
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
        """Add a node that waits for an approval.

        The outputs are `approved`, `action` and `artifact`.

        Args:
            node_id: The node's id.
            title: The question to the approver.
            artifact: The value that the approver sees and decides on.
            actions: The actions that the approver can choose from.
            required_approvals: The number of approvals that are needed.
            timeout: The number of seconds to wait; 0 means no limit.
            settings: Retries, timeout and backoff.
            **config: More members of the node's config.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used.

        Example:
            >>> from wopr import Workflow
            >>> flow = Workflow("order")
            >>> review = flow.approval("review", "Ship the order?", timeout=3600)
            >>> _ = review.when("outputs.approved") >> flow.end(action=review["action"])
        """
        artifacts = {} if artifact is UNSET else {"artifact": artifact}
        gate_config: JsonObject = {
            "title": title,
            "actions": list(actions),
            "requiredApprovals": required_approvals,
            "timeoutMs": round(timeout * 1000),
        }
        return self.node(node_id, APPROVAL, gate_config | config, artifacts, settings)

    def ask(
        self, node_id: str, /, *, settings: NodeSettings = NO_SETTINGS, **questions: str
    ) -> Node:
        """Add a node that asks a person questions.

        The output `answers` has one answer for each question.

        Args:
            node_id: The node's id.
            settings: Retries, timeout and backoff.
            **questions: The questions by name.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used.

        Example:
            >>> from wopr import Workflow
            >>> flow = Workflow("shirt")
            >>> size = flow.ask("ask", size="Which size?", color="Which color?")
            >>> _ = size >> flow.end(size=size["answers"]["size"])
        """
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
        """Add a node that runs another workflow and waits for it.

        Args:
            node_id: The node's id.
            workflow: The other workflow, or its id.
            into: Variables of this workflow to set, each with the variable of the other workflow.
            settings: Retries, timeout and backoff.
            **inputs: The inputs of the other workflow.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used.

        Example:
            >>> from wopr import Workflow
            >>> ship = Workflow("ship")
            >>> _ = ship.end()
            >>> flow = Workflow("order")
            >>> _ = flow.sub("ship", ship, address="Main Street 1") >> flow.end()
            >>> [child.id for child in flow.children]
            ['ship']
        """
        faults: list[str] = []
        if isinstance(workflow, Workflow):
            self.uses(workflow)
            schema = schema_for(workflow.inputs_type)
            faults = list(value_faults(inputs, schema, required(schema)))
        child = workflow if isinstance(workflow, str) else workflow.id
        config = {"workflowId": child, "outputMapping": dict(into or {})}
        node = self.node(node_id, SUB_WORKFLOW, config, inputs, settings)
        node.faults += tuple(faults)
        return node

    def uses(self, *workflows: AnyWorkflow) -> None:
        """Register more workflows together with this workflow.

        Args:
            *workflows: Workflows that this workflow starts, such as those of `core.dispatch` nodes.
        """
        self._children += [each for each in workflows if each not in self._children]

    def end(self, node_id: str = "end", /, **outputs: object) -> Node:
        """Add a node that ends the run.

        Args:
            node_id: The node's id.
            **outputs: The outputs of the run. `build` checks them against the declared type.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used.
        """
        schema = schema_for(self.outputs_type)
        wire = WorkflowNode(
            id=node_id,
            type_id=END,
            name=node_id,
            position=self._position(),
            config={},
            inputs={key: port_of(value) for key, value in outputs.items()},
            output_role="primary",
        )
        faults = [
            fault.replace("input", "output", 1)
            for fault in value_faults(outputs, schema, required(schema))
        ]
        return self._put(wire, node_type_of(END), faults=faults)

    def build(self) -> WorkflowDefinition:
        """Check the workflow and return its definition.

        Returns:
            The definition.

        Raises:
            WorkflowError: The workflow has errors. `faults` lists all of them.
        """
        return msgspec.convert(self.document(), WorkflowDefinition)

    def document(self) -> JsonObject:
        """Check the workflow and return the document for `POST /v1/workflows`.

        Returns:
            The document.

        Raises:
            WorkflowError: The workflow has errors. `faults` lists all of them.
        """
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
        with_version = add_version(document) if self.version is None else document
        faults = [*self._faults()] or host_faults(with_version, self.node_types)
        if faults:
            raise WorkflowError(f"workflow {self.id}", faults)
        return with_version

    def inputs_json(self, inputs: object) -> JsonObject:
        """Check a run's inputs and convert them to JSON.

        Args:
            inputs: A value of the inputs' type, an object, or None.

        Returns:
            The inputs as JSON.

        Raises:
            WorkflowError: The inputs are not of the declared type.
        """
        plain: JsonObject = {} if inputs is None else to_json(inputs)
        try:
            from_json(plain, self.inputs_type)
        except msgspec.ValidationError as fault:
            raise WorkflowError(f"inputs of {self.id}", [str(fault)]) from fault
        # `null` is not a value of any variable type.
        return {name: value for name, value in plain.items() if value is not None}

    def _faults(self) -> Iterator[str]:
        yield from graph_faults(self.nodes, self.edges)
        has_end = any(node.wire.type_id == END for node in self.nodes.values())
        if members(schema_for(self.outputs_type)) and not has_end:
            yield f"outputs are {self.outputs_type.__name__}, but no end() sets them"

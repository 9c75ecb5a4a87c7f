"""What a definition expects of the workflows that it starts, compared with what they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.engine.fold_agents import DISPATCH, SUPERVISOR
from wopr.nodes.registry import members_of
from wopr.protocol.checking import Fault
from wopr.protocol.documents import Json, JsonObject, Unset, is_list, is_object
from wopr.protocol.names import nearest, not_there
from wopr.protocol.workflow import WorkflowDefinition

SUB_WORKFLOW = "core.subWorkflow"
# Prefixes of the node types that every host has.
_OWN_TYPES = ("core.", "wopr.")
# A read of `inputs` or `variables` in an expression; the groups are the key, if there is one.
_INPUT_READ: Final = re.compile(
    r"""(?<![\w.])(?:inputs|variables)(?:\.(\w+)|\[["']([^"']+)["']\])?"""
)


def child_workflows(definition: JsonObject) -> Iterator[tuple[str, str]]:
    """Name every workflow that a definition starts by a fixed id, with the place of the id."""
    for index, node in enumerate(members_of(definition, "nodes")):
        path, config = f"nodes.{index}.config", node.get("config")
        if not is_object(config):
            continue
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            yield f"{path}.workflowId", config["workflowId"]
        if node.get("typeId") == SUPERVISOR:
            workers: Json = config.get("workers")
            for name in workers if is_object(workers) else ():
                yield f"{path}.workers.{name}", name
            for rule, decision in enumerate(members_of(config, "rules")):
                yield from _workers(f"{path}.rules.{rule}", decision.get("decision"))


def _workers(path: str, decision: Json) -> Iterator[tuple[str, str]]:
    workers: Json = decision.get("nextWorkerIds") if is_object(decision) else None
    for index, worker in enumerate(workers if is_list(workers) else ()):
        if isinstance(worker, str):
            yield f"{path}.decision.nextWorkerIds.{index}", worker


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMapping:
    """The variables that a node takes over from a child workflow, with the place of the mapping."""

    path: str
    child: str
    names: Mapping[str, str]
    # Names of the values that the node gives to the child. They are variables of its run too.
    given: Collection[str]

    def warnings(self, definition: JsonObject) -> Iterator[Fault]:
        """Name the variables that the child, as it is defined, does not set.

        A node type of a user may set any variable. With one of these in the child, only a name
        that is close to a known one is reported.
        """
        nodes = list(members_of(definition, "nodes"))
        known = {*self.given, *_variables_of(definition)}
        is_closed = all(str(each.get("typeId")).startswith(_OWN_TYPES) for each in nodes)
        for parent, name in self.names.items():
            if name not in known and (is_closed or nearest(name, known)):
                message = f"workflow {self.child!r} sets no variable {name!r}, so nothing is mapped"
                hint = not_there(name, known)
                yield Fault(path=f"{self.path}.{parent}", message=f"{message}: {hint}")


def output_mappings(definition: JsonObject) -> Iterator[OutputMapping]:
    """Find the output mappings that concern one child workflow."""
    for index, node in enumerate(members_of(definition, "nodes")):
        path, config = f"nodes.{index}.config", node.get("config")
        if not is_object(config):
            continue
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            yield OutputMapping(
                path=f"{path}.outputMapping",
                child=config["workflowId"],
                names=_texts(config.get("outputMapping")),
                given={*_object(node.get("inputs")), *_object(config.get("inputMapping"))},
            )
        if node.get("typeId") == DISPATCH:
            inputs = _object(config.get("perWorkerInputMappings"))
            for worker, mapping in _object(config.get("perWorkerOutputMappings")).items():
                yield OutputMapping(
                    path=f"{path}.perWorkerOutputMappings.{worker}",
                    child=worker,
                    names=_texts(mapping),
                    given=_object(inputs.get(worker, config.get("inputMapping"))),
                )


def _variables_of(definition: JsonObject) -> Iterator[str]:
    """Name the variables that a definition declares or that its nodes set by a fixed name."""
    for declared in members_of(definition, "variables"):
        yield str(declared.get("name"))
    for node in members_of(definition, "nodes"):
        config = _object(node.get("config"))
        yield from (str(config[key]) for key in ("name", "channelName") if key in config)
        mappings = _object(config.get("perWorkerOutputMappings")).values()
        for mapping in (config.get("outputMapping"), *mappings):
            yield from _object(mapping)


def child_inputs(definition: JsonObject) -> Iterator[tuple[str, str, Collection[str]]]:
    """Find the inputs that nodes give to a child workflow: their place, the child, their names."""
    for index, node in enumerate(members_of(definition, "nodes")):
        config = _object(node.get("config"))
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            child = config["workflowId"]
            yield f"nodes.{index}.inputs", child, _object(node.get("inputs"))
            yield f"nodes.{index}.config.inputMapping", child, _object(config.get("inputMapping"))


def input_warnings(path: str, child: WorkflowDefinition, given: Collection[str]) -> Iterator[Fault]:
    """Name the inputs that a child workflow, as it is defined, neither declares nor reads."""
    known = [variable.name for variable in child.variables]
    for name in unknown_inputs(child, given):
        message = f"workflow {child.id!r} has no input {name!r}, so it has no effect"
        yield Fault(path=f"{path}.{name}", message=f"{message}: {not_there(name, known)}")


def unknown_inputs(definition: WorkflowDefinition, given: Iterable[str]) -> list[str]:
    """Name the inputs that a workflow neither declares nor reads.

    A workflow without declared variables takes any inputs. So does one that works for an agent:
    the agent's task schema checks its inputs.
    """
    declared = {variable.name for variable in definition.variables}
    unknown = [name for name in given if name not in declared]
    if not unknown or not declared or not isinstance(definition.metadata.requires_agent_id, Unset):
        return []
    texts = list(_strings_in(msgspec.to_builtins([definition.nodes, definition.edges])))
    return [name for name in unknown if not any(_reads(text, name) for text in texts)]


def _strings_in(value: Json) -> Iterator[str]:
    """Every text of a JSON value."""
    if isinstance(value, str):
        yield value
    elif is_list(value):
        for each in value:
            yield from _strings_in(each)
    elif is_object(value):
        yield from _strings_in(list(value.values()))


def _reads(text: str, name: str) -> bool:
    """Tell whether a port, an expression or a config names this input, or reads all inputs."""
    if text == name or text.startswith(f"{name}."):
        return True
    found = _INPUT_READ.finditer(text)
    return any((match[1] or match[2] or name) == name for match in found)


def _object(value: Json) -> JsonObject:
    return value if is_object(value) else {}


def _texts(value: Json) -> dict[str, str]:
    return {key: text for key, text in _object(value).items() if isinstance(text, str)}

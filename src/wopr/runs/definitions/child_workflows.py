"""Child workflows of a definition: their ids, and warnings for inputs and outputs."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.engine.fold.agents import DISPATCH, SUPERVISOR
from wopr.protocol.documents import (
    Json,
    JsonObject,
    Unset,
    is_list,
    is_object,
    object_of,
    objects_in,
)
from wopr.protocol.json_schema.validation import Fault
from wopr.protocol.suggestions import nearest, shorten_name, suggest_name
from wopr.protocol.workflow import WorkflowDefinition

SUB_WORKFLOW = "core.subWorkflow"
# Prefixes of the node types that every host has.
_BUILT_IN = ("core.", "wopr.")
# A read of `inputs` or `variables` in an expression. The groups match the key, if there is one.
_INPUT_READ: Final = re.compile(
    r"""(?<![\w.])(?:inputs|variables)(?:\.(\w+)|\[["']([^"']+)["']\])?"""
)


def child_workflows(definition: JsonObject) -> Iterator[tuple[str, str]]:
    """List every workflow that a definition starts by a fixed id, with the path of the id."""
    for index, node in enumerate(objects_in(definition, "nodes")):
        path, config = f"nodes.{index}.config", node.get("config")
        if not is_object(config):
            continue
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            yield f"{path}.workflowId", config["workflowId"]
        if node.get("typeId") == SUPERVISOR:
            workers: Json = config.get("workers")
            for name in workers if is_object(workers) else ():
                yield f"{path}.workers.{name}", name
            for rule, decision in enumerate(objects_in(config, "rules")):
                yield from _workers(f"{path}.rules.{rule}", decision.get("decision"))


def _workers(path: str, decision: Json) -> Iterator[tuple[str, str]]:
    workers: Json = decision.get("nextWorkerIds") if is_object(decision) else None
    for index, worker in enumerate(workers if is_list(workers) else ()):
        if isinstance(worker, str):
            yield f"{path}.decision.nextWorkerIds.{index}", worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The inputs that a workflow reads and the variables that it sets."""

    declared: frozenset[str]
    # Whether it accepts any input.
    accepts_any: bool
    # All texts of its nodes and edges, sorted. Each can be the name of an input.
    texts: Sequence[str]
    # The members of `inputs` and `variables` that its expressions read.
    read: frozenset[str]
    # The variables that it declares or that its nodes set by a fixed name.
    variables: frozenset[str]
    # Whether all its node types are built in. A user's node type may set any variable.
    is_closed: bool

    def unknown_inputs(self, given: Collection[str]) -> Iterator[str]:
        """List the inputs that the workflow neither declares nor reads."""
        if not self.accepts_any:
            yield from (name for name in given if not self._reads(name))

    def _reads(self, name: str) -> bool:
        if name in self.declared or name in self.read:
            return True
        member = f"{name}."
        return self._text_from(name) == name or self._text_from(member).startswith(member)

    def _text_from(self, start: str) -> str:
        """Return the first text that is equal to `start` or sorts after it."""
        at = bisect_left(self.texts, start)
        return self.texts[at] if at < len(self.texts) else ""


def interface_of(definition: WorkflowDefinition) -> Interface:
    """Find the inputs and variables of a workflow in one pass over its definition.

    A workflow without declared variables accepts any input. So does one that reads all inputs, and
    one that works for an agent: the task schema of the agent checks its inputs.
    """
    declared = frozenset(variable.name for variable in definition.variables)
    texts: list[str] = []
    read: set[str] = set()
    accepts_any = not declared or not isinstance(definition.metadata.requires_agent_id, Unset)
    if not accepts_any:
        parts: Json = msgspec.to_builtins([definition.nodes, definition.edges])
        texts = sorted(set(_strings_in(parts)))
        read = {
            match[1] or match[2] or "" for text in texts for match in _INPUT_READ.finditer(text)
        }
    return Interface(
        declared=declared,
        # An empty name means a read of all inputs.
        accepts_any=accepts_any or "" in read,
        texts=texts,
        read=frozenset(read),
        variables=frozenset(_variables_of(definition)),
        is_closed=all(node.type_id.startswith(_BUILT_IN) for node in definition.nodes),
    )


def _strings_in(value: Json) -> Iterator[str]:
    """Find every text of a JSON value."""
    parts: list[Json] = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            yield part
        elif is_list(part):
            parts.extend(part)
        elif is_object(part):
            parts.extend(part.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMapping:
    """The variables that a node copies from a child workflow, with the path of the mapping."""

    path: str
    child: str
    names: Mapping[str, str]
    # Names of the inputs of the child. They are variables of its run too.
    given: Collection[str]

    def unset_variables(self, child: Interface) -> list[str]:
        """List the variables of the parent whose source the child does not set."""
        return [
            parent
            for parent, name in self.names.items()
            if name not in self.given and name not in child.variables
        ]

    def warning(self, child: Interface, parent: str) -> Fault | None:
        """Return the warning that a variable of the parent gets no value.

        When the child has a user's node type, which may set any variable, only a name that is close
        to a known one is reported.
        """
        name, known = self.names[parent], {*self.given, *child.variables}
        if not child.is_closed and nearest(name, known) is None:
            return None
        message = f"workflow {shorten_name(self.child)!r} sets no variable {shorten_name(name)!r}, so nothing is mapped"
        hint = suggest_name(name, known)
        return Fault(path=f"{self.path}.{parent}", message=f"{message}: {hint}")


def output_mappings(definition: JsonObject) -> Iterator[OutputMapping]:
    """Find the output mappings that concern one child workflow."""
    for index, node in enumerate(objects_in(definition, "nodes")):
        path, config = f"nodes.{index}.config", node.get("config")
        if not is_object(config):
            continue
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            yield OutputMapping(
                path=f"{path}.outputMapping",
                child=config["workflowId"],
                names=_string_members(config.get("outputMapping")),
                given={*object_of(node.get("inputs")), *object_of(config.get("inputMapping"))},
            )
        if node.get("typeId") == DISPATCH:
            inputs = object_of(config.get("perWorkerInputMappings"))
            for worker, mapping in object_of(config.get("perWorkerOutputMappings")).items():
                yield OutputMapping(
                    path=f"{path}.perWorkerOutputMappings.{worker}",
                    child=worker,
                    names=_string_members(mapping),
                    given=object_of(inputs.get(worker, config.get("inputMapping"))),
                )


def _variables_of(definition: WorkflowDefinition) -> Iterator[str]:
    for declared in definition.variables:
        yield declared.name
    for node in definition.nodes:
        config = node.config
        yield from (str(config[key]) for key in ("name", "channelName") if key in config)
        mappings = object_of(config.get("perWorkerOutputMappings")).values()
        for mapping in (config.get("outputMapping"), *mappings):
            yield from object_of(mapping)


def child_inputs(definition: JsonObject) -> Iterator[tuple[str, str, Collection[str]]]:
    """Find the inputs of child workflows: their path, the child and their names."""
    for index, node in enumerate(objects_in(definition, "nodes")):
        config = object_of(node.get("config"))
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            child = config["workflowId"]
            yield f"nodes.{index}.inputs", child, object_of(node.get("inputs"))
            yield (
                f"nodes.{index}.config.inputMapping",
                child,
                object_of(config.get("inputMapping")),
            )


def input_warnings(
    path: str, name: str, child: Interface, given: Collection[str]
) -> Iterator[Fault]:
    """Report the inputs that a child workflow neither declares nor reads."""
    for unknown in child.unknown_inputs(given):
        message = (
            f"workflow {shorten_name(name)!r} has no input {shorten_name(unknown)!r}, so it has no effect: "
            f"{suggest_name(unknown, child.declared)}"
        )
        yield Fault(path=f"{path}.{unknown}", message=message)


def _string_members(value: Json) -> dict[str, str]:
    return {key: text for key, text in object_of(value).items() if isinstance(text, str)}

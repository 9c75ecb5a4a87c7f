"""What a definition expects of the workflows that it starts, compared with what they are."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.engine.fold_agents import DISPATCH, SUPERVISOR
from wopr.nodes.registry import members_of
from wopr.protocol.checking import Fault
from wopr.protocol.documents import Json, JsonObject, Unset, is_list, is_object
from wopr.protocol.names import nearest, not_there, shown
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
class Interface:
    """The inputs that a workflow reads and the variables that it sets, found once per definition."""

    declared: frozenset[str]
    # Whether it has no inputs that are unknown.
    takes_any: bool
    # All texts of its nodes and edges in order: a port or a config may be the name of an input.
    texts: Sequence[str]
    # The names that its expressions read of `inputs` and `variables`.
    read: frozenset[str]
    # The variables that it declares or that its nodes set by a fixed name.
    variables: frozenset[str]
    # Whether no node type of a user, which may set any variable, is among its nodes.
    is_closed: bool

    def unknown_inputs(self, given: Collection[str]) -> Iterator[str]:
        """Name the inputs that the workflow neither declares nor reads."""
        if not self.takes_any:
            yield from (name for name in given if not self._has(name))

    def _has(self, name: str) -> bool:
        if name in self.declared or name in self.read:
            return True
        member = f"{name}."
        return self._text_from(name) == name or self._text_from(member).startswith(member)

    def _text_from(self, start: str) -> str:
        """Return the text itself if it is there, else the one that follows it."""
        at = bisect_left(self.texts, start)
        return self.texts[at] if at < len(self.texts) else ""


def interface_of(definition: WorkflowDefinition) -> Interface:
    """Read what a workflow takes and sets, in one pass over its definition.

    A workflow without declared variables takes any inputs. So does one that reads all of them, and
    one that works for an agent: the agent's task schema checks its inputs.
    """
    declared = frozenset(variable.name for variable in definition.variables)
    texts: list[str] = []
    read: set[str] = set()
    takes_any = not declared or not isinstance(definition.metadata.requires_agent_id, Unset)
    if not takes_any:
        parts: Json = msgspec.to_builtins([definition.nodes, definition.edges])
        texts = sorted(set(_strings_in(parts)))
        read = {
            match[1] or match[2] or "" for text in texts for match in _INPUT_READ.finditer(text)
        }
    return Interface(
        declared=declared,
        # An empty name stands for a read of all inputs.
        takes_any=takes_any or "" in read,
        texts=texts,
        read=frozenset(read),
        variables=frozenset(_variables_of(definition)),
        is_closed=all(node.type_id.startswith(_OWN_TYPES) for node in definition.nodes),
    )


def _strings_in(value: Json) -> Iterator[str]:
    """Every text of a JSON value."""
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
    """The variables that a node takes over from a child workflow, with the place of the mapping."""

    path: str
    child: str
    names: Mapping[str, str]
    # Names of the values that the node gives to the child. They are variables of its run too.
    given: Collection[str]

    def unset(self, child: Interface) -> list[str]:
        """Name the variables of the parent whose source the child, as it is defined, may not set."""
        return [
            parent
            for parent, name in self.names.items()
            if name not in self.given and name not in child.variables
        ]

    def warning(self, child: Interface, parent: str) -> Fault | None:
        """Say that a variable of the parent gets no value.

        A node type of a user may set any variable. With one of these in the child, only a name
        that is close to a known one is reported.
        """
        name, known = self.names[parent], {*self.given, *child.variables}
        if not child.is_closed and nearest(name, known) is None:
            return None
        message = (
            f"workflow {shown(self.child)!r} sets no variable {shown(name)!r}, so nothing is mapped"
        )
        hint = not_there(name, known)
        return Fault(path=f"{self.path}.{parent}", message=f"{message}: {hint}")


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


def _variables_of(definition: WorkflowDefinition) -> Iterator[str]:
    for declared in definition.variables:
        yield declared.name
    for node in definition.nodes:
        config = node.config
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


def input_warnings(
    path: str, name: str, child: Interface, given: Collection[str]
) -> Iterator[Fault]:
    """Name the inputs that a child workflow, as it is defined, neither declares nor reads."""
    for unknown in child.unknown_inputs(given):
        message = (
            f"workflow {shown(name)!r} has no input {shown(unknown)!r}, so it has no effect: "
            f"{not_there(unknown, child.declared)}"
        )
        yield Fault(path=f"{path}.{unknown}", message=message)


def _object(value: Json) -> JsonObject:
    return value if is_object(value) else {}


def _texts(value: Json) -> dict[str, str]:
    return {key: text for key, text in _object(value).items() if isinstance(text, str)}

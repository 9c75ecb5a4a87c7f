"""The node types that every host has, and those that conformance adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wopr.nodes import (
    branching,
    call_prompt,
    channel_write,
    conformance,
    conversation_gate,
    delay,
    dispatch,
    fail,
    flow,
    gates,
    governance_gate,
    http_request,
    identity,
    identity_hooks,
    llm,
    mcp_call,
    mock_agent,
    sub_workflow,
    supervisor,
    variables,
)
from wopr.nodes.registry import NodeRegistry, NodeType, declared_in

MODULES = (
    flow,
    identity,
    delay,
    fail,
    variables,
    branching,
    channel_write,
    sub_workflow,
    call_prompt,
    llm,
    http_request,
    mcp_call,
    gates,
    governance_gate,
    conversation_gate,
    supervisor,
    dispatch,
    mock_agent,
    identity_hooks,
    conformance,
)


def builtin_types(*, with_conformance: bool) -> Iterator[NodeType]:
    """Every built-in type; the conformance-only ones when asked for."""
    for module in MODULES:
        for node_type in declared_in(vars(module)):
            if with_conformance or not node_type.conformance_only:
                yield _inline(node_type)


def conformance_types() -> frozenset[str]:
    """The ids of the built-in types that only a host with `--conformance` has."""
    types = builtin_types(with_conformance=True)
    return frozenset(node_type.type_id for node_type in types if node_type.conformance_only)


def _inline(node_type: NodeType) -> NodeType:
    """Let the plain functions of the host itself run without a thread: none of them blocks."""
    if not node_type.runs_in_thread:
        return node_type
    return replace(node_type, is_async=False, runs_in_thread=False)


def builtin_registry(*, with_conformance: bool = False) -> NodeRegistry:
    """A registry with the built-in types and those of installed packages."""
    registry = NodeRegistry(builtin_types(with_conformance=with_conformance))
    registry.load_entry_points()
    return registry

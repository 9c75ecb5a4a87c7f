"""The built-in node types, including the types for conformance tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wopr.nodes import (
    call_prompt,
    conformance,
    flow,
    gates,
    http_request,
    llm,
    mcp_call,
    sub_workflow,
    variables,
)
from wopr.nodes.orchestrator import dispatch, supervisor
from wopr.nodes.registry import NodeRegistry, NodeType, node_types_in

MODULES = (
    flow,
    variables,
    sub_workflow,
    call_prompt,
    llm,
    http_request,
    mcp_call,
    gates,
    supervisor,
    dispatch,
    conformance,
)
# Modules whose types use neither models, tools, memory nor confidence.
_WITHOUT_AGENT = frozenset(module.__name__ for module in (flow, variables, sub_workflow))


def builtin_types(*, with_conformance: bool) -> Iterator[NodeType]:
    """Yield every built-in type. Types for conformance tests are included only on request."""
    for module in MODULES:
        for node_type in node_types_in(vars(module)):
            if with_conformance or not node_type.conformance_only:
                yield _inline(node_type)


def conformance_types() -> frozenset[str]:
    """Return the ids of the built-in types that only a host with `--conformance` has."""
    types = builtin_types(with_conformance=True)
    return frozenset(node_type.type_id for node_type in types if node_type.conformance_only)


def _inline(node_type: NodeType) -> NodeType:
    """Return the type without a thread for a plain function: built-in functions do not block."""
    uses_agent = node_type.execute.__module__ not in _WITHOUT_AGENT
    if not node_type.runs_in_thread:
        return replace(node_type, uses_agent_context=uses_agent)
    return replace(node_type, is_async=False, runs_in_thread=False, uses_agent_context=uses_agent)


def builtin_registry(*, with_conformance: bool = False) -> NodeRegistry:
    """Return a registry with the built-in types and the types of installed packages."""
    registry = NodeRegistry(builtin_types(with_conformance=with_conformance))
    registry.load_entry_points()
    return registry

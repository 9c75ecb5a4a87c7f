"""WOPR: a durable host for OpenWOP v1.

The Python API is imported from here when it is first used, so that `import wopr` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wopr.agents.tools.tool import ToolContext, ToolFault
    from wopr.api.agent import Agent
    from wopr.api.errors import (
        HostError,
        HostRefused,
        HostUnreachable,
        RunCancelled,
        RunEnded,
        RunFailed,
        WorkflowError,
    )
    from wopr.api.events import Event
    from wopr.api.host import Host, connect
    from wopr.api.nodes import Node, any_of, expr
    from wopr.api.run import Run
    from wopr.api.tools import mcp_server, tool
    from wopr.api.views import RunView
    from wopr.api.workflow import Workflow
    from wopr.engine.outcome import NodeFailure
    from wopr.nodes.context import NodeContext
    from wopr.nodes.registry import node
    from wopr.protocol.interrupts import InboxItem
    from wopr.protocol.workflow import NodeSettings, RetryPolicy, WorkflowSettings
    from wopr.version import __version__

__all__ = [
    "Agent",
    "Event",
    "Host",
    "HostError",
    "HostRefused",
    "HostUnreachable",
    "InboxItem",
    "Node",
    "NodeContext",
    "NodeFailure",
    "NodeSettings",
    "RetryPolicy",
    "Run",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunView",
    "ToolContext",
    "ToolFault",
    "Workflow",
    "WorkflowError",
    "WorkflowSettings",
    "__version__",
    "any_of",
    "connect",
    "expr",
    "mcp_server",
    "node",
    "tool",
]

_MODULES = {
    "api.agent": ("Agent",),
    "api.errors": (
        "HostError",
        "HostRefused",
        "HostUnreachable",
        "RunCancelled",
        "RunEnded",
        "RunFailed",
        "WorkflowError",
    ),
    "api.events": ("Event",),
    "api.host": ("Host", "connect"),
    "api.nodes": ("Node", "any_of", "expr"),
    "api.run": ("Run",),
    "api.tools": ("mcp_server", "tool"),
    "api.views": ("RunView",),
    "api.workflow": ("Workflow",),
    "engine.outcome": ("NodeFailure",),
    "nodes.context": ("NodeContext",),
    "nodes.registry": ("node",),
    "agents.tools.tool": ("ToolContext", "ToolFault"),
    "protocol.interrupts": ("InboxItem",),
    "protocol.workflow": ("NodeSettings", "RetryPolicy", "WorkflowSettings"),
    "version": ("__version__",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name of the API from its module."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'wopr' has no attribute {name!r}")
    found: object = getattr(import_module(f"wopr.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

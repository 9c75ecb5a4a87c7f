"""Apps: Python files with tools, agents, node types and workflows for a host."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeGuard, cast

from wopr.agents.mcp.servers import McpServer
from wopr.agents.models.port import Models
from wopr.agents.tools.functions import FunctionTool
from wopr.agents.tools.tool import Tool
from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.api.node_types import known_types
from wopr.api.tools import tool_in
from wopr.api.workflow import AnyWorkflow, Workflow
from wopr.host.contributions import Contributions
from wopr.nodes.registry import NodeType
from wopr.protocol.suggestions import suggest_name

MODULE: Final = "wopr_app"


class AppError(Exception):
    """An app cannot be loaded. The message has the file and line; `code` is the source line."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def load_app(target: str) -> Contributions:
    """Import `file.py` or `file.py:name` and collect its declarations.

    Without a name, collect all declarations at the top level of the file. With a name, collect this
    declaration or list of declarations. Raises `AppError`.
    """
    name, _, attribute = target.partition(":")
    path = Path(name)
    module = _import(path)
    try:
        if attribute:
            collected = collect(_attribute(path, module, attribute), is_strict=True)
        else:
            collected = collect(vars(module).values())
    except WorkflowError as fault:
        raise AppError(f"{name}: {fault}") from fault
    return replace(collected, code_version=code_version(path))


def code_version(path: Path) -> str:
    """Return a digest of an app's file and of the imported modules in its folder."""
    folder = path.resolve().parent
    files = {path.resolve()}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).resolve().is_relative_to(folder):
            files.add(Path(file).resolve())
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.suffix == ".py" and "site-packages" not in file.parts and file.is_file():
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return f"app-{digest.hexdigest()[:12]}"


def collect(values: Iterable[object], *, is_strict: bool = False) -> Contributions:
    """Collect the declarations in these values and what they use. Raises `WorkflowError`.

    With `is_strict`, a value without a declaration is an error.
    """
    collected = _Collector()
    for value in values:
        if not collected.add(value) and is_strict:
            fault = (
                "this is not a workflow, agent, tool, node function, MCP server or model provider"
            )
            raise WorkflowError(repr(value), [fault])
    return Contributions(
        node_types=tuple(collected.types.values()),
        tools=tuple(collected.tools.values()),
        mcp_servers=tuple(collected.servers.values()),
        agents=tuple(agent.manifest() for agent in collected.agents.values()),
        workflows=tuple(workflow.document() for workflow in collected.workflows.values()),
        models=collected.models,
    )


class _Collector:
    """The declarations collected so far, each once. Two declarations with one name are an error."""

    def __init__(self) -> None:
        self.types: dict[str, NodeType] = {}
        self.tools: dict[str, Tool] = {}
        self.servers: dict[str, McpServer] = {}
        self.agents: dict[str, Agent] = {}
        self.workflows: dict[str, AnyWorkflow] = {}
        self.models: Models | None = None

    def add(self, value: object) -> bool:
        """Add the declarations of a value and what they use. Return whether there are any."""
        if is_workflow(value):
            self._add_workflow(value)
        elif isinstance(value, Agent):
            self._add_agent(value)
        elif isinstance(value, FunctionTool):
            _put(self.tools, value.name, value, "tool")
        elif isinstance(value, McpServer):
            _put(self.servers, value.name, value, "MCP server")
        elif isinstance(value, NodeType):
            self._add_type(value)
        elif is_model_provider(value):
            self.models = value
        else:
            return self._add_function(value)
        return True

    def _add_function(self, value: object) -> bool:
        marks = (tool_in(value), getattr(value, "__wopr_node__", None))
        collected = [mark for mark in marks if isinstance(mark, FunctionTool | NodeType)]
        for mark in collected:
            self.add(mark)
        return bool(collected)

    def _add_workflow(self, workflow: AnyWorkflow) -> None:
        if self.workflows.get(workflow.id) is workflow:
            return
        _put(self.workflows, workflow.id, workflow, "workflow")
        for used in (*workflow.agents, *workflow.node_types, *workflow.children):
            self.add(used)

    def _add_agent(self, agent: Agent) -> None:
        _put(self.agents, agent.id, agent, "agent")
        for server in agent.mcp_servers:
            self.add(server)
        for tool in agent.tools:
            _put(self.tools, tool.name, tool, "tool")

    def _add_type(self, node_type: NodeType) -> None:
        known = known_types().get(node_type.type_id)
        if known is None:
            _put(self.types, node_type.type_id, node_type, "node type")
        elif known is not node_type:
            raise WorkflowError(
                f"node type {node_type.type_id}",
                ["every host already has a node type with this id"],
            )


def is_workflow(value: object) -> TypeGuard[AnyWorkflow]:
    """Return whether a value is a workflow."""
    return isinstance(value, Workflow)


def is_model_provider(value: object) -> TypeGuard[Models]:
    """Return whether a value is a model provider, such as `ScriptedModels`."""
    parts = ("ask", "capabilities")
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in parts
    )


def _put(known: dict[str, Any], name: str, value: object, kind: str) -> None:
    if known.setdefault(name, value) is not value:
        raise WorkflowError(f"{kind} {name}", ["two declarations have this name"])


def _attribute(path: Path, module: ModuleType, name: str) -> Iterable[object]:
    if not hasattr(module, name):
        known = (each for each in vars(module) if not each.startswith("_"))
        raise AppError(f"{path} has no {name!r}: {suggest_name(name, known)}")
    value: object = getattr(module, name)
    return cast("Iterable[object]", value) if isinstance(value, list | tuple) else [value]


def _import(path: Path) -> ModuleType:
    """Import a file as a module. Like a script, it can import modules of its folder."""
    if not path.is_file():
        raise AppError(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise AppError(f"{path} is not a Python file: its name must end with .py")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    # Type hints are resolved by module name, also during the import.
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as fault:
        raise _error_with_line(path, fault) from fault
    return module


def _error_with_line(path: Path, fault: Exception | SystemExit) -> AppError:
    """Describe an error with the line of the app where it occurred."""
    if isinstance(fault, SyntaxError) and fault.lineno is not None:
        where = f"{fault.filename or path}:{fault.lineno}"
        return AppError(f"{where}: SyntaxError: {fault.msg}", (fault.text or "").strip())
    what = f"{type(fault).__name__}: {fault}"
    app_frames = [
        frame
        for frame in traceback.extract_tb(fault.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    if not app_frames:
        return AppError(f"{path}: {what}")
    return AppError(f"{path}:{app_frames[-1].lineno}: {what}", app_frames[-1].line or "")

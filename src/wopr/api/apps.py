"""Apps: Python files whose tools, agents, node types and workflows a host can serve."""

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

from wopr.agents.functions import FunctionTool
from wopr.agents.mcp_servers import McpServer
from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.api.tools import tool_in
from wopr.api.types import known_types
from wopr.api.workflow import AnyWorkflow, Workflow
from wopr.nodes.models import Models
from wopr.nodes.registry import NodeType
from wopr.nodes.tools import Tool
from wopr.protocol.names import not_there
from wopr.runtime.contributions import Contributions

MODULE: Final = "wopr_app"


class AppError(Exception):
    """An app that cannot be loaded; the message says where in which file, `code` what stands there."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def load_app(target: str) -> Contributions:
    """Import `file.py` or `file.py:name` and collect what it declares.

    Without a name that is everything at the top of the file; a name is one thing or a list of them.
    Raises `AppError`.
    """
    name, _, wanted = target.partition(":")
    path = Path(name)
    module = _imported(path)
    try:
        if wanted:
            found = collect(_wanted(path, module, wanted), is_strict=True)
        else:
            found = collect(vars(module).values())
    except WorkflowError as fault:
        raise AppError(f"{name}: {fault}") from fault
    return replace(found, code_version=code_version(path))


def code_version(path: Path) -> str:
    """A digest of an app's file and of the modules beside it that it has imported."""
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
    """Everything that these values declare or use. Raises `WorkflowError` for what cannot work.

    Strictly, that is also a value that declares nothing.
    """
    found = _Found()
    for value in values:
        if not found.take(value) and is_strict:
            fault = "it is no workflow, agent, tool, node function, MCP server or models"
            raise WorkflowError(repr(value), [fault])
    return Contributions(
        node_types=tuple(found.types.values()),
        tools=tuple(found.tools.values()),
        mcp_servers=tuple(found.servers.values()),
        agents=tuple(agent.manifest() for agent in found.agents.values()),
        workflows=tuple(workflow.document() for workflow in found.workflows.values()),
        models=found.models,
    )


class _Found:
    """What was found so far, each once; one name for two things is refused."""

    def __init__(self) -> None:
        self.types: dict[str, NodeType] = {}
        self.tools: dict[str, Tool] = {}
        self.servers: dict[str, McpServer] = {}
        self.agents: dict[str, Agent] = {}
        self.workflows: dict[str, AnyWorkflow] = {}
        self.models: Models | None = None

    def take(self, value: object) -> bool:
        """Take what a value declares, and what that uses; tell whether it declares anything."""
        if is_workflow(value):
            self._take_workflow(value)
        elif isinstance(value, Agent):
            self._take_agent(value)
        elif isinstance(value, FunctionTool):
            _keep(self.tools, value.name, value, "tool")
        elif isinstance(value, McpServer):
            _keep(self.servers, value.name, value, "MCP server")
        elif isinstance(value, NodeType):
            self._take_type(value)
        elif are_models(value):
            self.models = value
        else:
            return self._take_function(value)
        return True

    def _take_function(self, value: object) -> bool:
        marks = (tool_in(value), getattr(value, "__wopr_node__", None))
        found = [mark for mark in marks if isinstance(mark, FunctionTool | NodeType)]
        for mark in found:
            self.take(mark)
        return bool(found)

    def _take_workflow(self, workflow: AnyWorkflow) -> None:
        if self.workflows.get(workflow.id) is workflow:
            return
        _keep(self.workflows, workflow.id, workflow, "workflow")
        for used in (*workflow.agents, *workflow.node_types, *workflow.children):
            self.take(used)

    def _take_agent(self, agent: Agent) -> None:
        _keep(self.agents, agent.id, agent, "agent")
        for server in agent.mcp_servers:
            self.take(server)
        for tool in agent.tools:
            _keep(self.tools, tool.name, tool, "tool")

    def _take_type(self, node_type: NodeType) -> None:
        known = known_types().get(node_type.type_id)
        if known is None:
            _keep(self.types, node_type.type_id, node_type, "node type")
        elif known is not node_type:
            raise WorkflowError(
                f"node type {node_type.type_id}", ["every host has one of this name"]
            )


def is_workflow(value: object) -> TypeGuard[AnyWorkflow]:
    """Tell whether a value is a workflow, whatever it takes and gives."""
    return isinstance(value, Workflow)


def are_models(value: object) -> TypeGuard[Models]:
    """Tell whether a value answers for models, such as the script of a test."""
    parts = ("ask", "capabilities")
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in parts
    )


def _keep(kept: dict[str, Any], name: str, value: object, kind: str) -> None:
    if kept.setdefault(name, value) is not value:
        raise WorkflowError(f"{kind} {name}", ["there are two of this name"])


def _wanted(path: Path, module: ModuleType, name: str) -> Iterable[object]:
    if not hasattr(module, name):
        known = (each for each in vars(module) if not each.startswith("_"))
        raise AppError(f"{path}: there is no {name!r}: {not_there(name, known)}")
    value: object = getattr(module, name)
    return cast("Iterable[object]", value) if isinstance(value, list | tuple) else [value]


def _imported(path: Path) -> ModuleType:
    """Import a file as a module of its own, which finds its neighbours as a script would."""
    if not path.is_file():
        raise AppError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise AppError(f"{path}: an app is a Python file, and ends in .py")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    # Types are looked up by the name of their module, also while it is still being imported.
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as fault:
        raise _at_line(path, fault) from fault
    return module


def _at_line(path: Path, fault: Exception | SystemExit) -> AppError:
    """What went wrong, with the line of the app where it did."""
    if isinstance(fault, SyntaxError) and fault.lineno is not None:
        where = f"{fault.filename or path}:{fault.lineno}"
        return AppError(f"{where}: SyntaxError: {fault.msg}", (fault.text or "").strip())
    what = f"{type(fault).__name__}: {fault}"
    own = [
        frame
        for frame in traceback.extract_tb(fault.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    if not own:
        return AppError(f"{path}: {what}")
    return AppError(f"{path}:{own[-1].lineno}: {what}", own[-1].line or "")

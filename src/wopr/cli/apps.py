"""An app on the command line: load it, or say in which line it cannot be loaded."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from wopr.runtime.contributions import Contributions

AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]", help="A Python file, or one name of it, with agents and workflows."
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        envvar="WOPR_APP",
        metavar="FILE[:NAME]",
        help="Serve the agents, tools, node types and workflows of a Python file.",
    ),
]


def loaded(target: str) -> Contributions:
    """Load an app."""
    from wopr.api.apps import AppError, load_app

    try:
        return load_app(target)
    except AppError as fault:
        hint = f"look at: {fault.code}" if fault.code else None
        raise CliError(str(fault), ExitCode.USAGE, code="app_error", hint=hint) from None


def told(target: str, app: Contributions) -> list[str]:
    """What an app has, and what to try with it."""
    lines = [f"{target} has"]
    parts = (
        ("agent", [str(agent["agentId"]) for agent in app.agents]),
        ("tool", [tool.name for tool in app.tools]),
        ("node type", [node_type.type_id for node_type in app.node_types]),
        ("workflow", [str(workflow["id"]) for workflow in app.workflows]),
    )
    lines += [f"  {kind:<10} {name}" for kind, names in parts for name in names]
    if len(lines) == 1:
        lines.append("  nothing    no agent, tool, node type or workflow at its top")
    for workflow in app.workflows:
        inputs = "".join(
            f" -i {variable['name']}=…"
            for variable in workflow["variables"]
            if variable.get("required")
        )
        lines.append(f"  try        wopr run {workflow['id']}{inputs} --follow")
    lines += [f"  needs      {missing}" for missing in _missing(app)]
    return [*lines, "  look       wopr inbox list, wopr runs list"]


def _missing(app: Contributions) -> list[str]:
    """What an app's models need, and this environment has not."""
    from wopr.runtime.environment import with_environment
    from wopr.runtime.models import missing_for
    from wopr.runtime.settings import Settings

    if app.models is not None:
        return []
    # A setting that cannot be read is told by the host that is about to start.
    with suppress(ValueError):
        return missing_for(_models(app), with_environment(Settings(), os.environ))
    return []


def _models(app: Contributions) -> list[str]:
    """The models that an app's workflows name, without those whose tenants bring a key."""
    nodes = [node for workflow in app.workflows for node in workflow["nodes"]]
    named = [
        str(node["config"]["model"])
        for node in nodes
        if "model" in node.get("config", {}) and "credentialsRef" not in node
    ]
    return list(dict.fromkeys(named))

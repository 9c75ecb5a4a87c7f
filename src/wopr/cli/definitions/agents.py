"""`wopr agents`: list, show and add agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wopr.api.documents import AgentItem
from wopr.cli.client import with_client
from wopr.cli.definitions.files import FilesArgument, process_files, yaml_text
from wopr.cli.errors import command
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import print_json, print_table
from wopr.protocol.documents import JsonObject, Unset

if TYPE_CHECKING:
    from wopr.api.client import Client

app = typer.Typer(help="List, show and add agents.", no_args_is_help=True)


@app.command("list")
@command
def list_agents(
    url: UrlOption = None, api_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """List the installed agents."""
    response = with_client(ServerOptions(url, api_key), lambda client: client.agents())
    if as_json:
        print_json(response.body)
        return
    print_table(
        ("AGENT", "VERSION", "NAME", "MODEL CLASS", "THRESHOLD", "TOOLS", "MISSING"),
        map(_row, response.document.agents),
    )


@app.command()
@command
def show(
    agent_id: Annotated[str, typer.Argument(metavar="ID", help="The agent's id.")],
    version: Annotated[str | None, typer.Option(help="The version. Default: the newest.")] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show an agent of the inventory. The prompt is not shown."""
    response = with_client(
        ServerOptions(url, api_key), lambda client: client.agent(agent_id, version)
    )
    if as_json:
        print_json(response.body)
    else:
        typer.echo(yaml_text(response.document), nl=False)


@app.command()
@command
def add(
    files: FilesArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Install manifests. New runs use the new version of an agent."""

    async def install(client: Client, manifest: JsonObject) -> JsonObject:
        entry = (await client.add_agent(manifest)).document
        return {"id": entry.agent_id, "version": entry.pack_version}

    process_files(files, ServerOptions(url, api_key), install, as_json=as_json, done="added")


def _row(agent: AgentItem) -> tuple[str, ...]:
    threshold = agent.confidence_threshold
    return (
        agent.agent_id,
        agent.pack_version,
        agent.label,
        agent.model_class,
        "" if isinstance(threshold, Unset) else f"{threshold:g}",
        ", ".join(agent.tool_allowlist),
        ", ".join(agent.degraded),
    )

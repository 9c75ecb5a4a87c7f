"""`wopr mcp`: connects MCP clients that start a command, such as editors, to a running host."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from wopr.cli.client import ServerAddress, find_server
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import KeyOption, ServerOptions, UrlOption


@command
def mcp(url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Serve MCP over standard input and output, for a running host.

    The tools are the workflows that the key can run. The MCP client starts this command. The
    command ends when the client closes its input.
    """
    server = find_server(ServerOptions(url, api_key))
    if find_spec("mcp") is None:
        raise CliError(
            "`wopr mcp` needs the package mcp", ExitCode.USAGE, hint='pip install "wopr[mcp]"'
        )
    if server.api_key is None:
        raise CliError(
            f"there is no API key for {server.url}", ExitCode.USAGE, hint="set WOPR_API_KEY"
        )
    _run_proxy(server)


def _run_proxy(server: ServerAddress) -> None:
    # Imported here, because only this command needs these modules and they load slowly.
    import anyio

    from wopr.http.mcp.proxy import ConnectionFailed, proxy

    try:
        anyio.run(partial(proxy, server.url, server.api_key or ""))
    except ConnectionFailed as fault:
        raise CliError(str(fault), ExitCode.UNAVAILABLE) from None

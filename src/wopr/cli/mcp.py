"""`wopr mcp`: a running host for MCP clients that start a command, such as editors and desktops."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from wopr.cli.credentials import Server, find_server
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.options import KeyOption, Target, UrlOption


@command
def mcp(url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Speak MCP over standard input and output, for a host that is running.

    Its workflows are the tools, with what the key may do. A client starts this command itself; it ends
    when the client closes its input.
    """
    server = find_server(Target(url, api_key))
    if find_spec("mcp") is None:
        raise CliError("this needs the package mcp", ExitCode.USAGE, hint='pip install "wopr[mcp]"')
    if server.api_key is None:
        raise CliError(
            f"there is no API key for {server.url}", ExitCode.USAGE, hint="set WOPR_API_KEY"
        )
    _pass_on(server)


def _pass_on(server: Server) -> None:
    # Only this command needs them, and they take a while to load.
    import anyio

    from wopr.http.mcp_proxy import NotReached, proxy

    try:
        anyio.run(partial(proxy, server.url, server.api_key or ""))
    except NotReached as fault:
        raise CliError(str(fault), ExitCode.UNAVAILABLE) from None

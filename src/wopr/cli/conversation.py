"""Talk to the server from a command, loading the HTTP client only then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from wopr.cli.options import Target

if TYPE_CHECKING:
    from wopr.cli.connection import Client

R = TypeVar("R")


def ask(target: Target, conversation: Callable[[Client], Awaitable[R]]) -> R:
    """Hold one conversation with the server and give back its result."""
    # `wopr --help` and shell completion import the commands; the client costs as much as
    # all of them together.
    import anyio

    from wopr.cli.connection import open_client
    from wopr.cli.credentials import find_server

    async def hold() -> R:
        async with open_client(find_server(target)) as client:
            return await conversation(client)

    return anyio.run(hold)

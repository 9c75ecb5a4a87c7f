"""Calls to the server from commands: the server's URL and key, errors, and lists of items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from wopr.api.documents import Listing
from wopr.api.errors import HostError, HostRefused
from wopr.cli.database import credentials_path
from wopr.cli.errors import CliError, ExitCode, exit_code_of_status
from wopr.cli.options import ServerOptions
from wopr.cli.output import Cells, note, print_json_value, print_table
from wopr.protocol.documents import Document, JsonObject

if TYPE_CHECKING:
    from wopr.api.client import Client, DecodedResponse

R = TypeVar("R")
T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:8642"
PAGE_SIZE: Final = 200
_HINTS: Final = {
    "server_unreachable": "start it with `wopr serve`, or set --url or WOPR_URL",
    "bad_answer": "check that --url or WOPR_URL is a WOPR server, e.g. with `wopr doctor`",
    "stream_lost": "the run is not affected; follow it again with `wopr runs tail`",
}


class CredentialsFile(Document, frozen=True, kw_only=True):
    """The credentials file. `wopr serve` writes it on its first start."""

    url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's URL without a trailing slash, and the key for it."""

    url: str
    api_key: str | None


def with_client(target: ServerOptions, work: Callable[[Client], Awaitable[R]]) -> R:
    """Open a client of the server, do the work and return its result."""
    # `wopr --help` and shell completion import all commands. Importing the client takes as long as
    # importing all of them.
    import anyio

    server = find_server(target)

    async def use() -> R:
        from wopr.api.client import open_client

        async with open_client(server.url, server.api_key) as client:
            return await work(client)

    try:
        return anyio.run(use)
    except HostError as error:
        raise cli_error(error, has_key=server.api_key is not None) from error


def cli_error(error: HostError, *, has_key: bool) -> CliError:
    """Convert the error of a call to the error of the command."""
    exit_code = ExitCode.UNAVAILABLE
    if isinstance(error, HostRefused):
        exit_code = exit_code_of_status(error.status)
    hint = _HINTS.get(error.code)
    if exit_code is ExitCode.DENIED:
        hint = (
            "the key is not valid here or lacks the scope; `wopr keys list` shows the keys"
            if has_key
            else "set WOPR_API_KEY or use --api-key; `wopr keys create` creates a key"
        )
    return CliError(error.message, exit_code, code=error.code, hint=hint, details=error.details)


def find_server(target: ServerOptions) -> ServerAddress:
    """Complete the options of the command from the credentials file.

    The key in the file is sent only to the URL in the file.
    """
    saved = read_credentials()
    url = _checked_url(target.url or (saved.url if saved else DEFAULT_URL))
    if target.api_key is not None and target.api_key.strip():
        return ServerAddress(url, _checked_key(target.api_key.strip()))
    if saved is not None and _checked_url(saved.url) == url:
        return ServerAddress(url, _checked_key(saved.api_key))
    return ServerAddress(url, None)


def read_credentials() -> CredentialsFile | None:
    """Read the credentials file; None if it does not exist."""
    path = credentials_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=CredentialsFile)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise CliError(
            f"cannot read {path}: {fault.strerror}",
            ExitCode.USAGE,
            hint="run as the user who ran `wopr serve`, or set WOPR_URL and WOPR_API_KEY",
        ) from None
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise CliError(
            f"{path} is not a credentials file: {fault}",
            ExitCode.USAGE,
            hint="remove it, or set WOPR_URL and WOPR_API_KEY",
        ) from None


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise CliError(f"{url} is not a URL such as {DEFAULT_URL}", ExitCode.USAGE)
    return url.rstrip("/")


def _checked_key(key: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise CliError("the API key has characters that no API key can have", ExitCode.USAGE)
    return key


@dataclass(slots=True)
class Collected(Generic[T]):
    """Items of a collection. `next_cursor` is None if the collection has no more items."""

    items: list[T] = field(default_factory=list[T])
    bodies: list[msgspec.Raw] = field(default_factory=list[msgspec.Raw])
    next_cursor: str | None = None

    def document(self) -> JsonObject:
        """Return the items as one page, each exactly as the server sent it."""
        document: JsonObject = {"items": self.bodies}
        if self.next_cursor is not None:
            document["nextCursor"] = self.next_cursor
        return document


async def collect(
    fetch: Callable[[Mapping[str, str]], Awaitable[DecodedResponse[Listing[T]]]],
    query: Mapping[str, str],
    limit: int | None,
) -> Collected[T]:
    """Read up to `limit` items of a collection, page by page; without a limit all items."""
    found: Collected[T] = Collected()
    while True:
        wanted = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(found.items))
        page_query = {**query, "limit": str(wanted)}
        if found.next_cursor is not None:
            page_query["cursor"] = found.next_cursor
        page = await fetch(page_query)
        found.items += page.document.items
        found.bodies += msgspec.json.decode(page.body, type=Listing[msgspec.Raw]).items
        found.next_cursor = page.document.next_cursor or None
        if found.next_cursor is None or (limit is not None and len(found.items) >= limit):
            return found


def print_collected(
    found: Collected[T], columns: Sequence[str], row: Callable[[T], Cells], *, as_json: bool
) -> None:
    """Print items as one document or as a table, with a note if there are more."""
    if as_json:
        print_json_value(found.document())
        return
    print_table(columns, map(row, found.items))
    if found.next_cursor is not None:
        note("there are more; use --limit or --all")

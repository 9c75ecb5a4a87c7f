"""Open the store that a URL names."""

from __future__ import annotations

from wopr.protocol.errors import Refused
from wopr.store.port import Store
from wopr.store.sqlite import SqliteStore

_SQLITE = "sqlite:///"


async def open_store(url: str) -> Store:
    """Open the store at `url`. Raises `Refused` for a form that no adapter knows.

    The refusal does not repeat the URL: one of another kind may hold a password.
    """
    path = url.removeprefix(_SQLITE)
    if not url.startswith(_SQLITE) or path in ("", ":memory:"):
        raise Refused(
            "db must be sqlite:///relative/path or sqlite:////absolute/path of a file", field="db"
        )
    return await SqliteStore.open(path)

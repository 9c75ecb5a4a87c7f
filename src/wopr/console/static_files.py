"""Styles and scripts: in memory, under an address that changes with their content."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from wopr.console.headers import SAFE_HEADERS
from wopr.http.answers import Answer
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.protocol.errors import NotFound

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def _read() -> dict[str, bytes]:
    folder = files("wopr.console") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if _type(file.name)}


def _type(name: str) -> str:
    return _TYPES.get(name[name.rfind(".") :], "")


FILES: Final = _read()
# One digest for all, so that a script finds the others beside it.
DIGEST: Final = hashlib.sha256(
    b"".join(name.encode() + FILES[name] for name in sorted(FILES))
).hexdigest()[:16]


def static_path(name: str) -> str:
    """The address of a file, good for as long as none of them changes."""
    if name not in FILES:
        raise LookupError(f"there is no static file {name}")
    return f"/static/{DIGEST}/{name}"


async def get_static(exchange: Exchange) -> Answer:
    """Serve a file, to be kept for a year."""
    name = exchange.path["name"]
    if exchange.path["digest"] != DIGEST or name not in FILES:
        raise NotFound("there is no such file")
    headers = SAFE_HEADERS | {"cache-control": "public, max-age=31536000, immutable"}
    return Answer(200, FILES[name], _type(name), headers)


STATIC: Final = Operation(
    name="console.static",
    method="GET",
    path="/static/{digest}/{name}",
    handler=get_static,
    is_unlimited=True,
    summary="static",
    tag="console",
)

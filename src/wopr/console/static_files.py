"""Style sheets and scripts, with URLs that change with their content; security headers."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from wopr.http.operation import Operation
from wopr.http.request import Request
from wopr.http.response import Response
from wopr.protocol.errors import NotFound

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SAFE_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


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
# One digest for all files, so that relative imports of scripts work.
DIGEST: Final = hashlib.sha256(
    b"".join(name.encode() + FILES[name] for name in sorted(FILES))
).hexdigest()[:16]


def static_path(name: str) -> str:
    """Return the URL of a file. It changes when a file changes."""
    if name not in FILES:
        raise LookupError(f"there is no static file {name}")
    return f"/static/{DIGEST}/{name}"


async def get_static(request: Request) -> Response:
    """Serve a file that browsers cache for a year."""
    name = request.path["name"]
    if request.path["digest"] != DIGEST or name not in FILES:
        raise NotFound("This file does not exist.")
    headers = SAFE_HEADERS | {"cache-control": "public, max-age=31536000, immutable"}
    return Response(200, FILES[name], _type(name), headers)


STATIC: Final = Operation(
    name="console.static",
    method="GET",
    path="/static/{digest}/{name}",
    handler=get_static,
    is_unlimited=True,
    summary="static",
    tag="console",
)

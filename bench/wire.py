"""Requests as bytes. They are built once, because building them must not be measured."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import Any

import msgspec

from bench.server import KEY


def request(
    method: str, path: str, body: bytes = b"", content_type: str = "application/json"
) -> bytes:
    """Return an HTTP/1.1 request for a keep-alive connection."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {KEY}",
    ]
    if method == "POST":
        lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def create_run(workflow_id: str) -> bytes:
    """Return the request that starts a run."""
    return request("POST", "/v1/runs", msgspec.json.encode({"workflowId": workflow_id}))


def call(port: int, method: str, path: str, body: Any = None) -> Any:
    """Send one request and return the decoded response; for requests that are not measured."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    try:
        raw = None if body is None else msgspec.json.encode(body)
        connection.request(method, path, body=raw, headers=headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status >= 400:
        raise RuntimeError(f"{method} {path} returned {response.status}: {content[:300]!r}")
    return msgspec.json.decode(content) if content else None

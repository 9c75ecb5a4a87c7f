"""What MCP servers say of their tools, kept on disk: a plan of today is the plan of tomorrow.

A replay that would ask a model the same must know the same tools, also when their server is gone.
What a server says is a claim of its own: it is shown to models as untrusted, and decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import anyio.to_thread
import msgspec

from wopr.agents.mcp_servers import ToolName
from wopr.engine.expression_tokens import is_list, is_object
from wopr.protocol.checking import schema_faults
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, Unset
from wopr.protocol.schema_size import SchemaLimits, size_faults
from wopr.security.untrusted import untrusted

MOST_TOOLS: Final = 500
LONGEST_DESCRIPTION: Final = 4000
_SUFFIX: Final = ".json"


class Listed(Closed, frozen=True, kw_only=True):
    """A tool as its server describes it; `output` is the JSON Schema of its structured results."""

    name: ToolName
    description: str
    parameters: JsonObject
    output: JsonObject | Unset = UNSET


def listed(
    name: str, description: str, schema: JsonObject, output: JsonObject | None = None
) -> Listed:
    """Return a tool as it is kept. Raises `ValueError` if its name or a schema cannot be used."""
    parameters = _marked(schema, name)
    _check("inputSchema", parameters)
    found: JsonObject = {
        "name": name,
        "description": untrusted(description[:LONGEST_DESCRIPTION], tool=name),
        "parameters": parameters,
    }
    if output is not None:
        _check("outputSchema", output)
        found["output"] = output
    try:
        return msgspec.convert(found, Listed)
    except msgspec.ValidationError as fault:
        raise ValueError(str(fault)) from fault


def _check(path: str, schema: Json) -> None:
    if not is_object(schema):
        raise ValueError(f"{path}: not a JSON object")
    for fault in size_faults(schema, SchemaLimits()):
        raise ValueError(f"{path}: {fault}")
    for unusable in schema_faults(path, schema):
        raise ValueError(f"{path}: {unusable.message}")


def _marked(schema: Json, tool: str) -> Json:
    """The schema with every description of its own marked, for a model will read those too."""
    if is_list(schema):
        return [_marked(each, tool) for each in schema]
    if not is_object(schema):
        return schema
    marked: JsonObject = {}
    for key, value in schema.items():
        if key in ("title", "$comment") and isinstance(value, str):
            continue
        is_text = key == "description" and isinstance(value, str)
        marked[key] = (
            untrusted(value[:LONGEST_DESCRIPTION], tool=tool) if is_text else _marked(value, tool)
        )
    return marked


class Listings:
    """The tools of every server, by tenant: a server may show each another set."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tools: dict[Path, Mapping[str, Listed]] = {}
        # Which file was read last: each is written once, and replaced by another.
        self._seen: dict[Path, tuple[int, int]] = {}

    def get(self, tenant: str, server: str) -> Mapping[str, Listed] | None:
        """The tools that a server had for a tenant when it was last asked; None if it never was.

        Another process that uses the directory may have asked since, so the file is looked at.
        """
        path = self._path(tenant, server)
        try:
            found = path.stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if self._seen.get(path) != seen:
                self._tools[path] = _read(path)
                self._seen[path] = seen
        except (OSError, msgspec.MsgspecError):
            # As good as none: what is known stays, and the server is asked again.
            pass
        return self._tools.get(path)

    async def put(self, tenant: str, server: str, tools: Iterable[Listed]) -> None:
        """Keep what a server has for a tenant."""
        found = {tool.name: tool for tool in tools}
        if self.get(tenant, server) == found:
            return
        path = self._path(tenant, server)
        body = msgspec.json.encode(list(found.values()))
        await anyio.to_thread.run_sync(_write, path, body)
        self._tools[path] = found

    def _path(self, tenant: str, server: str) -> Path:
        return self._directory / f"{server}@{quote(tenant, safe='')}{_SUFFIX}"


def _read(path: Path) -> Mapping[str, Listed]:
    tools = msgspec.json.decode(path.read_bytes(), type=list[Listed])
    return {tool.name: tool for tool in tools}


def _write(path: Path, body: bytes) -> None:
    """Put a whole file in the place of the old one, so that a crash leaves either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.write_bytes(body)
    draft.replace(path)

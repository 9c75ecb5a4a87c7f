"""MCP: serves workflows as tools to MCP clients."""

from __future__ import annotations

from typing import Final

PATH: Final = "/mcp"

"""MCP servers as sources of tools."""

from __future__ import annotations

"""The Python API: agents, tools and workflows in code, and a client of a host."""

from __future__ import annotations

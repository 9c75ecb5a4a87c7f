"""The Python API: agents, tools and workflows in code, and a host in a program's hands."""

from __future__ import annotations

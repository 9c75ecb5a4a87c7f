"""The execution of nodes: their context, their calls, and the events of their outcomes."""

from __future__ import annotations

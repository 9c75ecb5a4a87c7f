"""The agent loop: requests to a model, its session, its tool calls and its decisions."""

from __future__ import annotations

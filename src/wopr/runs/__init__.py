"""The shell around the engine: create, commands, advance, append, and what a node may use."""

from __future__ import annotations

"""Agents: manifests, memory, credentials, models, tools and the loop of a model's turns."""

from __future__ import annotations

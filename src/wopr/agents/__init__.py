"""Agents: their manifests, what tools they may call, and what they remember."""

from __future__ import annotations

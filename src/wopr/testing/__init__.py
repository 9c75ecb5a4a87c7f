"""Tests of agents and workflows: a host in memory, scripted models and a manual clock."""

from __future__ import annotations

from wopr.agents.models.port import ModelFault, ModelRequest
from wopr.testing.clock import Clock
from wopr.testing.hosting import memory_host
from wopr.testing.models import ScriptedModels, call, hand_over, say, scripted

__all__ = [
    "Clock",
    "ModelFault",
    "ModelRequest",
    "ScriptedModels",
    "call",
    "hand_over",
    "memory_host",
    "say",
    "scripted",
]

"""Test agents and workflows in milliseconds: a host in memory, a scripted model, a clock to turn."""

from __future__ import annotations

from wopr.nodes.models import ModelFault, ModelRequest
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

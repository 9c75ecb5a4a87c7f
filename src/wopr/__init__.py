"""WOPR: a durable host for OpenWOP v1."""

from __future__ import annotations

__version__ = "0.1.0"

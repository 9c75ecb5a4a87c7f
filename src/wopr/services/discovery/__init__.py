"""The discovery document."""

from __future__ import annotations

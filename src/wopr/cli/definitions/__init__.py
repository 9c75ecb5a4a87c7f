"""Commands about definitions: workflows and agents."""

from __future__ import annotations

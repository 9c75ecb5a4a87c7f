"""The host: assembles all parts and starts them."""

from __future__ import annotations

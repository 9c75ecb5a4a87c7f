"""Where runs are kept: the port, and the adapters that implement it."""

from __future__ import annotations

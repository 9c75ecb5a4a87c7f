"""Programs for development and releases."""

from __future__ import annotations

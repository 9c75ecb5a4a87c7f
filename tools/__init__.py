"""Programs for those who work on the project and release it."""

from __future__ import annotations

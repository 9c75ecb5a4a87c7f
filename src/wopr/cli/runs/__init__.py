"""Commands about runs: start, list, follow, answer, annotate, fork and export."""

from __future__ import annotations

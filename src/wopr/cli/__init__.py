"""The command line; the only place that reads argv."""

from __future__ import annotations

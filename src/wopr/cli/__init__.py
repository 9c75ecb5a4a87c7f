"""The command line. Only this package reads argv."""

from __future__ import annotations

"""OpenTelemetry spans of runs."""

from __future__ import annotations

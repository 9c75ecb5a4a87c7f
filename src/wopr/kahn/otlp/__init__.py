"""OpenTelemetry traces as KAHN lines."""

from __future__ import annotations

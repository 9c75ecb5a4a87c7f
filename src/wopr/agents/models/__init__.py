"""Language models: the port, its providers and the mock provider."""

from __future__ import annotations

"""CEL expressions: tokens, cost limits, compilation and evaluation."""

from __future__ import annotations

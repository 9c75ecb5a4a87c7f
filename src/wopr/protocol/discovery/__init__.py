"""The discovery document and its capability families."""

from __future__ import annotations

"""Commands for operators: serve, keys, quotas, audit and checks."""

from __future__ import annotations

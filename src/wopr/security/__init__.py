"""Pure security rules: what is a secret, who may be dialled, how a value is sealed."""

from __future__ import annotations

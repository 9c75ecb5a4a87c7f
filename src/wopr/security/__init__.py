"""Pure security rules: redaction, API keys, SSRF, encryption, tokens and the audit chain."""

from __future__ import annotations

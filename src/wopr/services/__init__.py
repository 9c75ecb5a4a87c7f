"""Services around runs: webhooks, audit, discovery, telemetry, retention, keys, debug bundles."""

from __future__ import annotations

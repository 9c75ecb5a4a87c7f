"""Webhooks: subscriptions, queue, signed delivery and retries."""

from __future__ import annotations

"""One process or several on one store: leases, membership, wake-ups and notifications."""

from __future__ import annotations

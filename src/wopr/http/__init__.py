"""The HTTP API: routes by resource, authentication, errors, streams."""

from __future__ import annotations

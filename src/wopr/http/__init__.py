"""The wire over HTTP: routes by resource, auth, errors, streams."""

from __future__ import annotations

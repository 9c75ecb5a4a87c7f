"""Refused requests."""

from __future__ import annotations

import httpx

from wopr.protocol.documents import JsonObject

JSON = {"Content-Type": "application/json"}


def refusal(response: httpx.Response, *statuses: int) -> JsonObject:
    """Return the envelope of a refusal."""
    assert response.status_code in statuses, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/json"
    envelope: JsonObject = response.json()
    return envelope

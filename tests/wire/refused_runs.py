"""Refused requests to create runs."""

from __future__ import annotations

from tests.support.client import Wire
from wopr.protocol.documents import Json, JsonObject


def refused(wire: Wire, body: JsonObject, **options: Json) -> JsonObject:
    """Return the details of a create request that is refused as invalid."""
    response = wire.post("/v1/runs", body, **options)
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "validation_error"
    details: JsonObject = response.json()["details"]
    return details

"""Value types that several event families share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from wopr.protocol.documents import UNSET, Document, JsonObject, NonEmpty, Unset

Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Ordinal = Annotated[int, msgspec.Meta(ge=1)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Timestamp = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
DistinctNames = Annotated[list[str], msgspec.Meta(extra_json_schema={"uniqueItems": True})]
DistinctWords = Annotated[list[NonEmpty], msgspec.Meta(extra_json_schema={"uniqueItems": True})]


class EventError(Document, frozen=True, kw_only=True):
    """An error in an event. It is open, unlike the error of a snapshot."""

    code: NonEmpty
    message: NonEmpty
    details: JsonObject | Unset = UNSET
    retryable: bool | Unset = UNSET


def require_distinct(name: str, values: Sequence[str] | Unset) -> None:
    """Raise `ValueError` if a list has equal items."""
    if values is not UNSET and len(set(values)) != len(values):
        raise ValueError(f"{name} must not have the same value twice")

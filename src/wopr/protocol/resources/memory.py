"""Long-term memory: entries, and the valid references, ids and tags."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from wopr.protocol.documents import UNSET, Closed, Unset
from wopr.protocol.events.values import Timestamp

LONGEST_REF: Final = 256
LONGEST_ID: Final = 1500
LONGEST_TAG: Final = 256


class MemoryEntry(Closed, frozen=True, kw_only=True):
    """One entry of a memory."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]
    content: str
    tags: list[Annotated[str, msgspec.Meta(max_length=LONGEST_TAG)]]
    created_at: Timestamp
    expires_at: Timestamp | Unset = UNSET


class MemoryListOptions(Closed, frozen=True, kw_only=True):
    """Options of a list of memory entries. A limit of 0 is the default limit."""

    limit: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET
    tag: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_TAG)] | Unset = UNSET


def is_memory_ref(text: str) -> bool:
    """Return whether a text is a valid memory reference. An invalid one reads as an empty memory.

    Its parts are separated by slashes. No part may be `.` or `..`, because it is not a path.
    """
    return _is_plain(text, LONGEST_REF) and not {".", ".."} & set(text.split("/"))


def is_memory_id(text: str) -> bool:
    """Return whether a text can be the id of an entry."""
    return _is_plain(text, LONGEST_ID)


def is_memory_tag(text: str) -> bool:
    """Return whether a text can be the tag of an entry."""
    return _is_plain(text, LONGEST_TAG)


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8. A lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(text: str, longest: int) -> bool:
    """Return whether a text is neither empty nor too long and has no control characters."""
    return 0 < len(text) <= longest and min(text) >= " " and is_encodable(text)

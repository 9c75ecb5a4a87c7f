"""Read a collection page after page, and print what was read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from wopr.cli.documents import Listing
from wopr.cli.output import Cells, note, print_json_value, print_table
from wopr.protocol.documents import JsonObject

if TYPE_CHECKING:
    from wopr.cli.connection import Answer

T = TypeVar("T")
PAGE: Final = 200


@dataclass(slots=True)
class Collected(Generic[T]):
    """What was read; `next_cursor` is None when that was all."""

    items: list[T] = field(default_factory=list[T])
    bodies: list[msgspec.Raw] = field(default_factory=list[msgspec.Raw])
    next_cursor: str | None = None

    def document(self) -> JsonObject:
        """The same as one page, its items exactly as the server gave them."""
        document: JsonObject = {"items": self.bodies}
        if self.next_cursor is not None:
            document["nextCursor"] = self.next_cursor
        return document


async def collect(
    fetch: Callable[[Mapping[str, str]], Awaitable[Answer[Listing[T]]]],
    query: Mapping[str, str],
    limit: int | None,
) -> Collected[T]:
    """Read up to `limit` items, or all of them."""
    found: Collected[T] = Collected()
    while True:
        wanted = PAGE if limit is None else min(PAGE, limit - len(found.items))
        asked = {**query, "limit": str(wanted)}
        if found.next_cursor is not None:
            asked["cursor"] = found.next_cursor
        page = await fetch(asked)
        found.items += page.document.items
        found.bodies += msgspec.json.decode(page.body, type=Listing[msgspec.Raw]).items
        found.next_cursor = page.document.next_cursor or None
        if found.next_cursor is None or (limit is not None and len(found.items) >= limit):
            return found


def print_collected(
    found: Collected[T], columns: Sequence[str], row: Callable[[T], Cells], *, as_json: bool
) -> None:
    """Print what was read as one document or as a table, and say when there is more."""
    if as_json:
        print_json_value(found.document())
        return
    print_table(columns, map(row, found.items))
    if found.next_cursor is not None:
        note("there are more; use --limit or --all")

"""A KAHN line as bytes: how one is written, and where one ends in a log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from wopr.protocol.documents import Json, JsonObject


def encode_line(fields: JsonObject) -> bytes:
    """Write one event as a line without its newline: compact, raw UTF-8, keys in their order.

    Raises `ValueError` for what JSON cannot hold: `NaN`, an infinity, half a surrogate pair.
    """
    return compact(fields).encode()


def compact(value: Json, *, is_sorted: bool = False) -> str:
    """Write a value in the form that lines have."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=is_sorted
    )


def split_lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Number the lines of a body from 1, without their newlines; blank ones are left out.

    Only a line feed ends a line: other line breaks are characters inside a string.
    """
    return ((number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip())


def numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number lines from 1; blank ones are counted and left out."""
    for number, line in enumerate(lines, 1):
        whole = line.removesuffix(b"\n")
        if whole.strip():
            yield number, whole

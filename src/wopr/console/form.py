"""Forms as browsers send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from wopr.http.exchange import Exchange, WrongMediaType
from wopr.protocol.errors import Refused

T = TypeVar("T")
URLENCODED: Final = "application/x-www-form-urlencoded"
MOST_FIELDS: Final = 500
# A form that takes no values of a workflow and no long texts.
SMALL_FORM_BYTES: Final = 64 * 1024


class Form:
    """The fields of a form; spaces around a value are not meant."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields

    def get(self, name: str) -> str:
        """A field's value; empty when it was left empty or is not there."""
        return self.fields.get(name, "").strip()

    def choice(self, name: str, among: tuple[str, ...], default: str = "") -> str:
        """A field that must be one of a few; the default when it is not there."""
        value = self.get(name) or default
        if value not in among:
            raise Refused(f"{name} must be one of {', '.join(among)}", field=name)
        return value


async def read_form(exchange: Exchange, most: int | None = None) -> Form:
    """Read a form of at most so many bytes; of a repeated field the last counts."""
    raw = await exchange.body(most)
    exchange.give_back(raw)
    media = (exchange.header(b"content-type") or "").partition(";")[0].strip().lower()
    if raw and media != URLENCODED:
        raise WrongMediaType(f"a form is {URLENCODED}, not {media!r}", field="Content-Type")
    try:
        fields = parse_qsl(raw.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as fault:
        raise Refused("the form cannot be read", field="body") from fault
    return Form(dict(fields))


def document(fields: Mapping[str, object], kind: type[T]) -> T:
    """A wire document from the fields of a form; one that was left empty is not sent."""
    try:
        return msgspec.convert({name: value for name, value in fields.items() if value}, kind)
    except msgspec.ValidationError as fault:
        message, _, path = str(fault).partition(" - at ")
        name = path.strip("`").removeprefix("$.") or "form"
        raise Refused(f"{name}: {message}", field=name) from fault

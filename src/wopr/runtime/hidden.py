"""Text of sensitive values: what is hidden in one place is known again in all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

from wopr.engine.state import RunState
from wopr.protocol.documents import Json, JsonObject
from wopr.security.redact import MIN_SECRET, Redactor, StreamRedactor

HIDDEN_ID: Final = "sensitive"
_STRUCTURE: Final = frozenset({"kind", "key", "name", "status", "phase", "drainPolicy"})


class HiddenTexts:
    """The texts that one run hides."""

    def __init__(self) -> None:
        self._redactor: Redactor | None = None

    @property
    def are_none(self) -> bool:
        """Whether nothing is hidden."""
        return self._redactor is None

    def hide(self, value: Json) -> None:
        """Hide every text in a value from now on."""
        for text in texts(value):
            if self._redactor is None:
                self._redactor = Redactor()
            self._redactor.register(HIDDEN_ID, text)

    def clean(self, state: RunState, value: Json) -> Json:
        """The value without hidden text; the very same one when it has none."""
        if self._redactor is None or state.graph.masking == "passthrough":
            return value
        return self._redactor.json(value)

    def clean_members(self, state: RunState, payload: JsonObject) -> JsonObject:
        """A payload without hidden text, but for what is the host's own in it."""
        if self._redactor is None:
            return payload
        return {
            name: value if _is_structure(name) else self.clean(state, value)
            for name, value in payload.items()
        }

    def stream(self) -> StreamRedactor | None:
        """What takes hidden text out of a stream; None when nothing is hidden."""
        return None if self._redactor is None else StreamRedactor(self._redactor)


def texts(value: Json) -> Iterator[str]:
    """Every text in a value that is long enough to be known again."""
    if isinstance(value, str):
        if len(value) >= MIN_SECRET:
            yield value
    elif isinstance(value, dict):
        for member in cast("JsonObject", value).values():
            yield from texts(member)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Json]", value):
            yield from texts(item)


def _is_structure(name: str) -> bool:
    """Whether a member of a payload is the host's own: ids, times and names of things."""
    return name.endswith(("Id", "At")) or name in _STRUCTURE

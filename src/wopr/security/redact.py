"""SR-1: no secret leaves the call that uses it. What is written or sent passes through here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from wopr.protocol.documents import Json, JsonObject
from wopr.security.encodings import escaped, spellings
from wopr.security.shapes import MASK, holds_shape, known_shapes

MIN_SECRET: Final = 8

_MARK: Final = re.compile(r"\[REDACTED(?::[^\[\]]*)?\]")
# A replacement can lay bare the edge of a neighbour, which the next round then takes. Two rounds
# settle ordinary text; the bound is for text that was made to fight it.
_ROUNDS: Final = 8


class Span(NamedTuple):
    """A stretch of text to replace, and by what. A registered value outranks a mere shape."""

    start: int
    end: int
    rank: int
    mark: str


class Redactor:
    """Replaces registered secrets and secret-shaped text; one per run, dropped with it.

    Redacting twice gives what redacting once gave, and nothing here raises: text that cannot
    be examined is masked whole.
    """

    def __init__(self) -> None:
        self._shapes = known_shapes()
        self._ids: dict[str, str] = {}
        self._marks: dict[str, str] = {}
        self._needles: tuple[str, ...] = ()
        self._has_digits = False

    def register(self, secret_id: str, value: str) -> None:
        """Have this value replaced by `[REDACTED:<secretId>]` from now on, in every encoding.

        A value under eight characters is left alone: it would match ordinary words.
        """
        if len(value) < MIN_SECRET or value in self._ids:
            return
        self._ids[value] = secret_id
        self._has_digits = self._has_digits or value.isdigit()
        forms = {form: sid for secret, sid in self._ids.items() for form in spellings(secret)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._marks = {form: self._mark(forms[form], longest_first) for form in longest_first}
        self._needles = tuple({text for form in longest_first for text in escaped(form)})

    @staticmethod
    def _mark(secret_id: str, forms: Sequence[str]) -> str:
        """Name the secret, unless its id would itself give one away."""
        named = f"[REDACTED:{secret_id}]"
        tells = holds_shape(named) or any(form in secret_id for form in forms)
        return named if not tells and _MARK.fullmatch(named) else MASK

    def may_hold_secret(self, encoded: bytes) -> bool:
        """Tell quickly whether encoded JSON needs redacting. `False` is certain."""
        text = encoded.decode("utf-8", "replace")
        for needle in self._needles:
            if needle in text:
                return True
        return holds_shape(text)

    def text(self, text: str) -> str:
        """Return the text without its secrets; the very same object when it held none."""
        for _ in range(_ROUNDS):
            spans = self.spans(text)
            if not spans:
                break
            text = _replaced(text, spans)
        return text

    def json(self, value: Json) -> Json:
        """Return the value without secrets in keys or values, sharing whatever is unchanged."""
        try:
            return self._walk(value)
        except RecursionError:
            return MASK

    def spans(self, text: str) -> list[Span]:
        """Find every secret in the text, in order; secrets that overlap are one span."""
        found = list(self._registered(text))
        if holds_shape(text):
            found += (Span(*at, 0, MASK) for shape in self._shapes for at in shape.spans(text))
        return _merged(found)

    @property
    def longest(self) -> int:
        """The length of the longest form of a registered value."""
        return max(map(len, self._marks), default=0)

    def _registered(self, text: str) -> Iterator[Span]:
        present = [form for form in self._marks if form in text]
        if not present:
            return
        # What an earlier pass wrote is not text to search: a value such as `REDACTED` is in it.
        own = {MASK, *self._marks.values()}
        done = [match.span() for match in _MARK.finditer(text) if match.group() in own]
        for form in present:
            for start in _occurrences(form, text):
                end = start + len(form)
                if not any(first <= start and end <= last for first, last in done):
                    yield Span(start, end, len(form), self._marks[form])

    def _walk(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._walk_members(cast("JsonObject", value))
        if isinstance(value, (list, tuple)):
            return self._walk_items(cast("Sequence[Json]", value))
        if self._has_digits and type(value) is int:
            return self._walk_number(value)
        return value

    def _walk_items(self, items: Sequence[Json]) -> Sequence[Json]:
        clean = [self._walk(item) for item in items]
        changed = any(new is not old for new, old in zip(clean, items, strict=True))
        return clean if changed else items

    def _walk_members(self, members: JsonObject) -> JsonObject:
        clean: JsonObject = {}
        changed = False
        for name, value in members.items():
            new_name = self._walk(name)
            new_value = self._walk(value)
            changed = changed or new_name is not name or new_value is not value
            clean[new_name] = new_value
        return clean if changed else members

    def _walk_number(self, value: int) -> int | str:
        """Mask a number whose digits are a registered value: a PIN is secret without quotes."""
        digits = str(value) if value.bit_length() <= 1024 else ""
        clean = self.text(digits)
        return value if clean is digits else clean


class StreamRedactor:
    """Redacts text that arrives in pieces, holding back an end that may be half a secret."""

    # Shapes have no blank inside, apart from the few words in front of a token or a key block.
    _LEAD: Final = 64
    # A run this long is data and not a credential; holding more would only cost memory.
    _LIMIT: Final = 16_384

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, chunk: str) -> str:
        """Take the next piece and return what is now safe to pass on, perhaps nothing."""
        self._held += chunk
        cut = self._safe_end()
        out, self._held = self._held[:cut], self._held[cut:]
        return self._redactor.text(out)

    def close(self) -> str:
        """Return what was held back. The stream is then empty and may be used again."""
        out, self._held = self._held, ""
        return self._redactor.text(out)

    def _safe_end(self) -> int:
        """Say how much of the held text no secret can reach into, whatever follows."""
        held = self._held
        cut = len(held) - max(self._LEAD, self._redactor.longest - 1)
        if cut <= 0:
            return 0
        run = _run_start(held, cut)
        cut = run if cut - run <= self._LIMIT else cut
        for span in reversed(self._redactor.spans(held)):
            if span.start < cut <= span.end:
                is_endless = len(held) - span.start > self._LIMIT
                cut = span.end if is_endless else span.start
        return cut


def _run_start(text: str, position: int) -> int:
    """Find where the run of characters around the position begins, blanks being its edges."""
    return 1 + max(text.rfind(blank, 0, position) for blank in " \t\r\n")


def _occurrences(form: str, text: str) -> Iterator[int]:
    """Yield every place of the form, those that overlap each other too."""
    start = text.find(form)
    while start >= 0:
        yield start
        start = text.find(form, start + 1)


def _merged(found: list[Span]) -> list[Span]:
    """Join spans that overlap under the mark of the longest registered value among them."""
    merged: list[Span] = []
    for span in sorted(found):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            best = max(last, span, key=lambda each: each.rank)
            merged[-1] = Span(last.start, max(last.end, span.end), best.rank, best.mark)
        else:
            merged.append(span)
    return merged


def _replaced(text: str, spans: Sequence[Span]) -> str:
    pieces: list[str] = []
    position = 0
    for span in spans:
        pieces += (text[position : span.start], span.mark)
        position = span.end
    return "".join((*pieces, text[position:]))

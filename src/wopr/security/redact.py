"""Redaction (SR-1): removes secrets from everything that is written or sent."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, cast
from urllib.parse import quote, quote_plus

from wopr.protocol.documents import Json, JsonObject
from wopr.security.shapes import MASK, holds_shape, names_secret, shapes_in

_PERCENT: Final = re.compile(r"%[0-9A-F]{2}")
# The two ways in which templates and libraries escape quotation marks.
_MARKUP: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_ENTITIES: Final = tuple(
    str.maketrans(_MARKUP | quotes)
    for quotes in ({'"': "&#34;", "'": "&#39;"}, {'"': "&quot;", "'": "&#x27;"})
)


def encodings(value: str) -> frozenset[str]:
    """Return the value in plain form and in every encoding that redaction searches."""
    plain = (value, *json_escapes(value))
    pages = (form.translate(entities) for form in plain for entities in _ENTITIES)
    return frozenset((*plain, *pages, *_url_forms(value), *_base64_forms(value)))


def json_escapes(value: str) -> tuple[str, str]:
    """Return the value as in a JSON string, with and without escaped non-ASCII characters."""
    return (
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(value, ensure_ascii=True)[1:-1],
    )


def _url_forms(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogatepass")
    for form in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield form
        yield _PERCENT.sub(lambda match: match.group().lower(), form)


def _base64_forms(value: str) -> Iterator[str]:
    """Yield the base64 of the value, also from inside the base64 of a longer text.

    Three bytes become four characters, so a value has three encodings, one for each offset. The
    characters at both ends that also encode bits of a neighbour are omitted.
    """
    raw = value.encode("utf-8", "surrogatepass")
    for offset, skipped in ((0, 0), (1, 2), (2, 3)):
        length = (offset + len(raw)) * 8 // 6
        encoded = base64.b64encode(bytes(offset) + raw)[skipped:length].decode("ascii")
        yield encoded
        yield encoded.replace("+", "-").replace("/", "_")


MIN_SECRET: Final = 8
# Shorter texts contain no secret. The shortest is `://:x@`, with the password `x`.
_SHORTEST: Final = 6

_MARK: Final = re.compile(r"\[REDACTED(?::[^\[\]]*)?\]")
# A replacement can expose another secret, which the next pass finds. Two passes are
# enough for ordinary text. The limit keeps the work linear for crafted text.
_PASSES: Final = 2
# Larger texts and documents are redacted in a thread, so that they do not block the event loop.
LARGE_BYTES: Final = 128 * 1024
# A text with more secrets is masked completely, because it would be slow to redact.
_MAX_SPANS: Final = 10_000
# The beginning of a secret-shaped text is recognized when it is longer than this.
_LONGEST_LEAD: Final = 256


class Span(NamedTuple):
    """A part of a text and its replacement. A registered value takes precedence over a shape."""

    start: int
    end: int
    rank: int
    mark: str


class Redactor:
    """Redacts registered secrets and secret-shaped text.

    Redaction is idempotent and never raises: text that cannot be examined is masked completely.
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        # Each encoding of a registered value, with the id of its secret.
        self._forms: dict[str, str] = {}
        # The mark of each id.
        self._marks: dict[str, str] = {}
        # The encodings as they appear in JSON.
        self._json_forms: list[str] = []
        self._has_digits = False
        # The length of the longest encoding of a registered value.
        self.longest = 0

    def register(self, secret_id: str, value: str) -> None:
        """Register a value to be replaced by `[REDACTED:<secretId>]` in every encoding.

        Without an id the mark has no name. A value of fewer than `MIN_SECRET` characters is not
        redacted: it would match ordinary words.
        """
        if len(value) < MIN_SECRET or value in self._ids:
            return
        self._ids[value] = secret_id
        self._has_digits = self._has_digits or value.isdigit()
        forms = encodings(value)
        self._forms |= dict.fromkeys(forms, secret_id)
        self._json_forms.extend({text for form in forms for text in json_escapes(form)})
        self.longest = max(self.longest, *map(len, forms))
        if secret_id not in self._marks:
            self._marks[secret_id] = self._mark(secret_id, self._forms)
        # An earlier id may contain the new value.
        unsafe = [each for each in self._marks if any(form in each for form in forms)]
        self._marks |= dict.fromkeys(unsafe, MASK)

    def copy(self) -> Redactor:
        """Return an independent redactor with the same registered values."""
        copied = Redactor()
        copied._ids = self._ids.copy()
        copied._forms = self._forms.copy()
        copied._marks = self._marks.copy()
        copied._json_forms = self._json_forms.copy()
        copied._has_digits = self._has_digits
        copied.longest = self.longest
        return copied

    @staticmethod
    def _mark(secret_id: str, forms: Iterable[str]) -> str:
        """Return the mark of a secret, without its id if the id contains a secret."""
        if not secret_id:
            return MASK
        named = f"[REDACTED:{secret_id}]"
        is_unsafe = holds_shape(named) or any(form in secret_id for form in forms)
        return named if not is_unsafe and _MARK.fullmatch(named) else MASK

    def may_hold_secret(self, encoded: bytes) -> bool:
        """Return whether encoded JSON may need redaction. This is fast, and `False` is certain."""
        text = encoded.decode("utf-8", "replace")
        for form in self._json_forms:
            if form in text:
                return True
        return holds_shape(text)

    def text(self, text: str) -> str:
        """Return the text without its secrets; the same object if it has none.

        If secrets are still found after the last pass, one mask replaces everything from the
        first to the last of them. If that exposes another one, a mask replaces the whole text.
        """
        if len(text) < _SHORTEST:
            return text
        for _ in range(_PASSES):
            spans = self.spans(text)
            if not spans:
                return text
            text = _replace_spans(text, spans)
        spans = self.spans(text)
        if not spans:
            return text
        text = f"{text[: spans[0].start]}{MASK}{text[spans[-1].end :]}"
        return MASK if self.spans(text) else text

    def excerpt(self, text: str, max_length: int) -> str:
        """Return the text without its secrets, cut to `max_length` characters.

        The work does not depend on the length of the text. A secret that is cut off is not
        recognized, so the end of the examined part is returned only up to its last mark.
        """
        if len(text) <= max_length:
            return self.text(text)
        margin = max(self.longest, _LONGEST_LEAD)
        clean = self.text(text[: max_length + margin])
        marked = max((match.end() for match in _MARK.finditer(clean)), default=0)
        return clean[: min(max_length - 1, max(marked, len(clean) - margin))] + "…"

    def json(self, value: Json) -> Json:
        """Return the value without secrets in keys or values. Unchanged parts are shared."""
        try:
            return self._walk(value)
        except RecursionError:
            return MASK

    def spans(self, text: str) -> list[Span]:
        """Return every secret in the text, in order. Overlapping secrets are one span.

        A text with too many secrets is one span.
        """
        found = list(islice(self._registered_spans(text), _MAX_SPANS))
        found += (Span(*at, 0, MASK) for at in islice(shapes_in(text), _MAX_SPANS))
        if len(found) >= _MAX_SPANS:
            return [Span(0, len(text), 0, MASK)]
        return _merge_spans(found) if found else found

    def _registered_spans(self, text: str) -> Iterator[Span]:
        # A copy, because this may run in a thread while another value is registered.
        present = [form for form in list(self._forms) if form in text]
        if not present:
            return
        # Marks of an earlier pass are not searched: a registered value could be `REDACTED`.
        marks = {MASK, *self._marks.values()}
        done = [match.span() for match in _MARK.finditer(text) if match.group() in marks]
        for form in present:
            for start in _occurrences(form, text):
                end = start + len(form)
                # Marks do not overlap, so only the last mark that begins at or before `start` can
                # contain it.
                before = bisect_right(done, (start, len(text))) - 1
                if before < 0 or done[before][1] < end:
                    yield Span(start, end, len(form), self._marks[self._forms[form]])

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
            new_name = self.text(name)
            is_secret = isinstance(value, str) and names_secret(name, value)
            new_value = MASK if is_secret else self._walk(value)
            changed = changed or new_name is not name or new_value is not value
            clean[new_name] = new_value
        return clean if changed else members

    def _walk_number(self, value: int) -> int | str:
        """Mask a number whose digits are a registered value, such as a PIN."""
        digits = str(value) if value.bit_length() <= 1024 else ""
        clean = self.text(digits)
        return value if clean is digits else clean


class Redactors:
    """The redactors of all tenants and of the process's logs.

    A tenant's own values are masked with their names, for that tenant only: a mark in another
    tenant's text would confirm a guess of this value. The operator's values are masked for every
    tenant, without a name.
    """

    def __init__(self) -> None:
        # Shapes and the operator's values.
        self.operator = Redactor()
        # The values of all tenants, without names, for texts that only the operator reads.
        self.process = Redactor()
        self._tenants: dict[str, Redactor] = {}

    def of_tenant(self, tenant: str) -> Redactor:
        """Return the redactor of everything that a tenant can read.

        It is the same object every time, so it also masks values that are registered later.
        """
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = self.operator.copy()
        return found

    def text(self, tenant: str, text: str) -> str:
        """Return a text of this tenant without its secrets."""
        return self.of_tenant(tenant).text(text)

    def register(self, tenant: str, secret_id: str, value: str) -> None:
        """Register a tenant's value.

        It is masked with its name in everything the tenant can read.
        """
        self.process.register("", value)
        self.of_tenant(tenant).register(secret_id, value)

    def register_operator(self, value: str, secret_id: str = "") -> None:
        """Register a value of the operator. It is masked for every tenant.

        Only a test value has a name.
        """
        for each in (self.operator, self.process, *self._tenants.values()):
            each.register(secret_id, value)


class StreamRedactor:
    """Redacts streamed text. It holds back the end of the text, which may be part of a secret."""

    # A shape contains no blank, except in the few words before a token or a key block.
    _LEAD: Final = 64
    # A longer word is not a credential.
    _LIMIT: Final = 16_384

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: list[str] = []
        self._length = 0
        # The length from which the held text is examined.
        self._due = 0

    def feed(self, chunk: str) -> str:
        """Add the next piece and return the text that is safe to send."""
        self._held.append(chunk)
        self._length += len(chunk)
        if self._length < self._due:
            return ""
        text = "".join(self._held)
        cut = self._safe_end(text)
        rest = text[cut:]
        self._held, self._length = [rest], len(rest)
        # Text that cannot be returned yet is examined again when it has grown by a quarter. That
        # keeps the work linear for any size of the pieces.
        self._due = 0 if cut else len(rest) + len(rest) // 4
        return self._redactor.text(text[:cut])

    def close(self) -> str:
        """Return the held text. The stream is then empty and can be used again."""
        out = "".join(self._held)
        self._held, self._length, self._due = [], 0, 0
        return self._redactor.text(out)

    def _safe_end(self, held: str) -> int:
        """Return the length of the held text that no continuation can make part of a secret."""
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
    """Return the start of the word around a position."""
    return 1 + max(text.rfind(blank, 0, position) for blank in " \t\r\n")


def _occurrences(form: str, text: str) -> Iterator[int]:
    """Yield every position of the text, including overlapping ones."""
    start = text.find(form)
    while start >= 0:
        yield start
        start = text.find(form, start + 1)


def _merge_spans(found: list[Span]) -> list[Span]:
    """Join overlapping spans, with the mark of their longest registered value."""
    merged: list[Span] = []
    for span in sorted(found):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            best = max(last, span, key=lambda each: each.rank)
            merged[-1] = Span(last.start, max(last.end, span.end), best.rank, best.mark)
        else:
            merged.append(span)
    return merged


def _replace_spans(text: str, spans: Sequence[Span]) -> str:
    pieces: list[str] = []
    position = 0
    for span in spans:
        pieces += (text[position : span.start], span.mark)
        position = span.end
    return "".join((*pieces, text[position:]))

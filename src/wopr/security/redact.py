"""SR-1: no secret leaves the call that uses it. What is written or sent passes through here."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, cast

from wopr.protocol.documents import Json, JsonObject
from wopr.security.encodings import escaped, spellings
from wopr.security.shapes import MASK, holds_shape, names_secret, shapes_in

MIN_SECRET: Final = 8
# No secret is shorter; the password in `://:x@` is recognized by all six characters.
_SHORTEST: Final = 6

_MARK: Final = re.compile(r"\[REDACTED(?::[^\[\]]*)?\]")
# A replacement can uncover the edge of another secret, which the next round finds. Two rounds are
# enough for ordinary text. The bound keeps the work linear for text that is made to need more.
_ROUNDS: Final = 2
# Larger texts and documents are redacted by a thread, so that the event loop goes on.
LARGE_BYTES: Final = 128 * 1024
# A text with so many secrets is masked whole: it is made to be slow to redact.
_MOST_SPANS: Final = 10_000
# The beginning of a secret-shaped text is recognized when it is longer than this.
_LONGEST_LEAD: Final = 256


class Span(NamedTuple):
    """A stretch of text to replace, and by what. A registered value outranks a mere shape."""

    start: int
    end: int
    rank: int
    mark: str


class Redactor:
    """Replaces registered secrets and secret-shaped text.

    Redacting twice gives what redacting once gave, and nothing here raises: text that cannot
    be examined is masked whole.
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        # Each form of a registered value, with the id of its secret.
        self._forms: dict[str, str] = {}
        # The mark of each id.
        self._marks: dict[str, str] = {}
        # The forms as they stand in encoded JSON.
        self._needles: list[str] = []
        self._has_digits = False
        # The length of the longest form of a registered value.
        self.longest = 0

    def register(self, secret_id: str, value: str) -> None:
        """Have this value replaced by `[REDACTED:<secretId>]` from now on, in every encoding.

        An empty id leaves the mark without a name. A value under eight characters is left alone:
        it would match ordinary words.
        """
        if len(value) < MIN_SECRET or value in self._ids:
            return
        self._ids[value] = secret_id
        self._has_digits = self._has_digits or value.isdigit()
        forms = spellings(value)
        self._forms |= dict.fromkeys(forms, secret_id)
        self._needles.extend({text for form in forms for text in escaped(form)})
        self.longest = max(self.longest, *map(len, forms))
        if secret_id not in self._marks:
            self._marks[secret_id] = self._mark(secret_id, self._forms)
        # An earlier id may hold the new value.
        telling = [each for each in self._marks if any(form in each for form in forms)]
        self._marks |= dict.fromkeys(telling, MASK)

    def copy(self) -> Redactor:
        """Return a redactor that knows the same values, and learns others by itself."""
        made = Redactor()
        made._ids = self._ids.copy()
        made._forms = self._forms.copy()
        made._marks = self._marks.copy()
        made._needles = self._needles.copy()
        made._has_digits = self._has_digits
        made.longest = self.longest
        return made

    @staticmethod
    def _mark(secret_id: str, forms: Iterable[str]) -> str:
        """Name the secret, unless its id would itself give one away."""
        if not secret_id:
            return MASK
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
        """Return the text without its secrets; the very same object when it held none.

        Where secrets are still found after the last round, one mask replaces everything from the
        first of them to the last. If that uncovers another one, a mask replaces the whole text.
        """
        if len(text) < _SHORTEST:
            return text
        for _ in range(_ROUNDS):
            spans = self.spans(text)
            if not spans:
                return text
            text = _replaced(text, spans)
        spans = self.spans(text)
        if not spans:
            return text
        text = f"{text[: spans[0].start]}{MASK}{text[spans[-1].end :]}"
        return MASK if self.spans(text) else text

    def excerpt(self, text: str, most: int) -> str:
        """Return the text without its secrets, and only its beginning if it is longer than `most`.

        The work does not depend on the length of the text. A secret that is cut off is not
        recognized, so the end of what was examined is shown only as far as its last mark.
        """
        if len(text) <= most:
            return self.text(text)
        unsure = max(self.longest, _LONGEST_LEAD)
        clean = self.text(text[: most + unsure])
        marked = max((match.end() for match in _MARK.finditer(clean)), default=0)
        return clean[: min(most - 1, max(marked, len(clean) - unsure))] + "…"

    def json(self, value: Json) -> Json:
        """Return the value without secrets in keys or values, sharing whatever is unchanged."""
        try:
            return self._walk(value)
        except RecursionError:
            return MASK

    def spans(self, text: str) -> list[Span]:
        """Find every secret in the text, in order; secrets that overlap are one span.

        A text with too many of them is one secret as a whole.
        """
        found = list(islice(self._registered(text), _MOST_SPANS))
        found += (Span(*at, 0, MASK) for at in islice(shapes_in(text), _MOST_SPANS))
        if len(found) >= _MOST_SPANS:
            return [Span(0, len(text), 0, MASK)]
        return _merged(found) if found else found

    def _registered(self, text: str) -> Iterator[Span]:
        # A copy, because this may run in a thread while another value is registered.
        present = [form for form in list(self._forms) if form in text]
        if not present:
            return
        # What an earlier pass wrote is not text to search: a value such as `REDACTED` is in it.
        own = {MASK, *self._marks.values()}
        done = [match.span() for match in _MARK.finditer(text) if match.group() in own]
        for form in present:
            for start in _occurrences(form, text):
                end = start + len(form)
                # Marks do not overlap, so only the last one that begins here or before can hold it.
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
        """Mask a number whose digits are a registered value: a PIN is secret without quotes."""
        digits = str(value) if value.bit_length() <= 1024 else ""
        clean = self.text(digits)
        return value if clean is digits else clean


class Redactors:
    """What is kept out of the answers to each tenant, and out of the logs of the process.

    A tenant's own values are masked under their names, for that tenant only: a mark in another
    tenant's text would confirm a guess of this value. The operator's values are
    masked for every tenant, under no name.
    """

    def __init__(self) -> None:
        # Shapes and the operator's values.
        self.operator = Redactor()
        # The values of all tenants, under no name. Only the operator reads what passes it.
        self.process = Redactor()
        self._tenants: dict[str, Redactor] = {}

    def of(self, tenant: str) -> Redactor:
        """Return what masks secrets in everything that this tenant can read.

        It is the same object every time: values that are registered later are masked by it too.
        """
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = self.operator.copy()
        return found

    def text(self, tenant: str, text: str) -> str:
        """Return a text of this tenant without its secrets."""
        return self.of(tenant).text(text)

    def register(self, tenant: str, secret_id: str, value: str) -> None:
        """Have a tenant's value masked under its name, in everything that this tenant can read."""
        self.process.register("", value)
        self.of(tenant).register(secret_id, value)

    def register_operator(self, value: str, secret_id: str = "") -> None:
        """Have a value of the operator masked for everyone; only a test value has a name."""
        for each in (self.operator, self.process, *self._tenants.values()):
            each.register(secret_id, value)


class StreamRedactor:
    """Redacts text that arrives in pieces, holding back an end that may be half a secret."""

    # Shapes have no blank inside, apart from the few words in front of a token or a key block.
    _LEAD: Final = 64
    # A run this long is data and not a credential; holding more would only cost memory.
    _LIMIT: Final = 16_384

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: list[str] = []
        self._length = 0
        # The length from which the held text is examined.
        self._due = 0

    def feed(self, chunk: str) -> str:
        """Take the next piece and return what is now safe to pass on, perhaps nothing."""
        self._held.append(chunk)
        self._length += len(chunk)
        if self._length < self._due:
            return ""
        text = "".join(self._held)
        cut = self._safe_end(text)
        rest = text[cut:]
        self._held, self._length = [rest], len(rest)
        # Text that cannot be passed on is examined again when there is a quarter more of it: that
        # keeps the work linear, however small the pieces are.
        self._due = 0 if cut else len(rest) + len(rest) // 4
        return self._redactor.text(text[:cut])

    def close(self) -> str:
        """Return what was held back. The stream is then empty and may be used again."""
        out = "".join(self._held)
        self._held, self._length, self._due = [], 0, 0
        return self._redactor.text(out)

    def _safe_end(self, held: str) -> int:
        """Say how much of the held text no secret can reach into, whatever follows."""
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

"""Secret-shaped text: formats of credentials that are not registered.

The formats of the protocol's list are defined here. The formats of other vendors come from the
detectors of `detect-secrets`. Only detectors of a known format are used: the entropy detectors
would mask ordinary ids and hashes.

Almost no text contains a secret, and every appended event is examined. So a search has three steps,
of which the first two are fast: a rare character, a probe for all shapes that contain it, and the
full pattern of a shape. Every repetition is bounded, is last, or cannot start again inside itself.
That keeps every search linear in the length of the text.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Final, NamedTuple, TypeAlias

MASK: Final = "[REDACTED]"
_Search: TypeAlias = Callable[..., re.Match[str] | None]
# Longer texts are searched in windows of this many characters, or of `LONG_WINDOW` characters for
# shapes with `is_long`. A match is recognized from its first `REACH` characters, or from its first
# `LONGEST` for shapes with `is_long`. A longer match is masked to the end of the text.
WINDOW: Final = 16_384
REACH: Final = 1_024
LONG_WINDOW: Final = 262_144
LONGEST: Final = 65_536
CANARY: Final = "CANARY-openwop-CONFORMANCE-NEVER-SECRET"


@dataclass(frozen=True, eq=False)
class SecretShape:
    """One credential format.

    Every match contains one of the `probes`. A probe has a bounded length and begins with a literal
    character. With `is_folded` it begins with two, and is searched in the lower-case text.
    `source` returns the pattern, which is compiled when a probe is found for the first time.
    `accepts` checks what a pattern cannot express.
    """

    probes: tuple[str, ...]
    source: Callable[[], str]
    is_folded: bool = False
    accepts: Callable[[str], bool] | None = None
    # Whether recognizing a match may need more than its first `REACH` characters.
    is_long: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of the whole format."""
        return re.compile(self.source(), re.ASCII)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the positions of the shape, or of the group `secret` if the pattern has one."""
        if len(text) > WINDOW:
            yield from self._spans_in_windows(text)
            return
        for match in self.pattern.finditer(text):
            if self.accepts is None or self.accepts(match[self._group]):
                yield match.span(self._group)

    @property
    def _group(self) -> str | int:
        return "secret" if "secret" in self.pattern.groupindex else 0

    def _spans_in_windows(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the positions in a long text. Each search examines a part of it.

        A search holds the interpreter; between two searches other threads run. A match that begins
        in a window is recognized from the window and the `reach` characters after it.
        """
        window, reach = (LONG_WINDOW, LONGEST) if self.is_long else (WINDOW, REACH)
        position, edge = 0, window
        while position < len(text):
            match = self.pattern.search(text, position, edge + reach)
            if match is None or match.start() >= edge:
                position, edge = edge, edge + window
                continue
            position = match.start() + 1
            if match.end() >= edge:
                match = self.pattern.match(text, match.start(), match.start() + LONGEST)
            if match is not None:
                start, end = match.span(self._group)
                position = match.end()
                if position > match.start() + LONGEST - REACH:
                    end = position = len(text)
                if self.accepts is None or self.accepts(match[self._group]):
                    yield start, end
            edge = max(edge, position)


def _is_in(search: _Search, text: str) -> bool:
    """Return whether a probe is found in a long text. Each search examines a part of it."""
    return any(search(text, at, at + WINDOW + REACH) for at in range(0, len(text), WINDOW))


def _left(prefix: str = "", also: str = "") -> str:
    """Match where a token may begin: not inside a word, unless the letter ends an escape.

    In JSON text a line break before a token ends with the letter `n`, and in a URL a space ends
    with the digits `20`: a plain word boundary would miss the token after it. A token is also found
    after a hyphen or an underscore. The test may follow a `prefix` of fixed width: a search for a
    literal is faster than a search for a boundary.
    """
    return (
        rf"(?:(?<![A-Za-z0-9{also}]{prefix})|(?<=\\[bfnrt]{prefix})"
        rf"|(?<=\\u[0-9A-Fa-f]{{4}}{prefix})|(?<=%[0-9A-Fa-f]{{2}}{prefix}))"
    )


def _token(prefix: str, rest: str) -> str:
    """Match a prefix of fixed width where a token may begin, and the rest of the token."""
    return prefix + _left(prefix) + rest


def _behind(*prefixes: str) -> str:
    """Match where one of these prefixes ends. A probe begins with their last character."""
    return f"(?:{'|'.join(f'(?<={prefix})' for prefix in prefixes)})"


_WORD: Final = _left()
_RUN: Final = _left(also="_-")

# The separators between the name of an authentication scheme and its credential.
_GAP: Final = r"(?:[\s:=+]|\\[nrt]|%20){1,8}"
# A character of a bearer token. It may be a slash, so a token in a path ends where the next bearer
# begins.
_BEARER: Final = r"(?:(?!(?i:bearer)[\s:=+\\%])[A-Za-z0-9._~+/=-])"

# Names whose value is a secret. Longer names may end with one (`db_password`, `PGPASSWORD`). The
# first letter is separate: a search for one of a few characters is fast.
_SECRET_NAME: Final = (
    r"[acprsACPRS](?i:ass(?:word|wd|phrase)"
    r"|pi[-_]?(?:key|token|secret)|ecret[-_]?(?:access[-_]?)?key|rivate[-_]?key"
    r"|lient[-_]?secret|(?:ccess|uth|efresh)[-_]?token)"
)
# The literals with which all these names end.
_NAME_ENDS: Final = ("password", "passwd", "passphrase", "key", "token", "secret")
# A value that is a mark already, or a placeholder. A placeholder is the whole value: a password may
# begin like one. In angle brackets it has words of one case and no digits.
_MARKED: Final = r"\[REDACTED(?::[^\[\]]{0,256})?\]"
_PLACEHOLDER: Final = (
    r"(?:\$?\{\{\s{0,4}[A-Za-z_][A-Za-z0-9_.-]{0,127}\s{0,4}\}\}|\$\{[A-Za-z_][A-Za-z0-9_.]{0,127}\}"
    r"|\$[A-Z_]{2,64}|<(?:[a-z]{1,32}(?:[ _.-][a-z]{1,32}){0,7}|[A-Z]{1,32}(?:[ _.-][A-Z]{1,32}){0,7})>"
    r"|\*{3,64}|\.{3,64}|(?i:none|null|true|false|undefined|str|string))"
)
# Code in place of a value: a variable with the name of a secret, or a call.
_CODE: Final = (
    rf"(?:(?:[A-Za-z_]{{1,32}}\.){{0,3}}{_SECRET_NAME}"
    r"|[A-Za-z_][A-Za-z_.]{1,63}\([A-Za-z_., ]{0,64}\))"
)
# The end of a value without quotation marks: before a space, or before the next pair of a list.
_VALUE_END: Final = (
    r"(?:[,;:})\]]{0,4}(?:[\s\"'&<>\\]|\Z)|[,;]\s{0,1}[A-Za-z_][A-Za-z0-9_. -]{0,63}[=:])"
)
_MARK_END: Final = r"(?:[\s\"'&<>\\,;})\]]|\Z)"
# A quotation mark: plain, escaped once or several times in JSON, or as an HTML entity.
_QUOTE: Final = r"\\{0,15}[\"']|&(?:\#34|\#39|quot);"
_UNQUOTED: Final = r"[^\s\"'&<>\\]"
_ASSIGNED: Final = (
    rf"{_SECRET_NAME}(?P<named>{_QUOTE})?\s{{0,4}}(?:(?P<colon>:|%3[Aa])|=>?|%3[Dd]|\\{{1,8}}u003[Dd])\s{{0,4}}"
    # A text may end with a name and a colon: its closing quotation mark begins no value. A colon
    # without quotation marks may also be followed by prose: `password: required`.
    rf"(?P<quote>(?:{_QUOTE})(?(named)|(?!\s{{0,4}}[],:}}])))?(?P<secret>"
    rf"(?!{_MARKED}{_MARK_END}|{_PLACEHOLDER}(?(quote)(?:(?P=quote)|\Z)|{_VALUE_END})"
    rf"|(?(quote)(?!)|{_CODE}{_VALUE_END}))"
    rf"(?(quote)(?:(?!(?P=quote))(?:\\.|[^\r\n]))+"
    rf"|(?(colon)(?=<?{_UNQUOTED}{{0,64}}[0-9!@\#$^*+=~]))<?{_UNQUOTED}{{4,}}))"
)
_IS_SECRET_NAME: Final = re.compile(rf"{_SECRET_NAME}\Z", re.ASCII)
_IS_PLACEHOLDER: Final = re.compile(f"{_MARKED}|{_PLACEHOLDER}", re.ASCII)


def names_secret(name: str, value: str) -> bool:
    """Return whether a member of a document holds a secret because of its name."""
    return (
        bool(value)
        and name.lower().endswith(_NAME_ENDS)
        and _IS_SECRET_NAME.search(name) is not None
        and _IS_PLACEHOLDER.fullmatch(value) is None
    )


def _is_basic(token: str) -> bool:
    """Return whether the text after `Basic` is a credential and not a word of a sentence.

    A credential is the base64 of `user:password`. A truncated one, or one with bytes of another
    encoding, is recognized by its length and its mixture of letters and digits.
    """
    raw = token[:4096].rstrip("=").replace("-", "+").replace("_", "/")
    # One character more than a multiple of four encodes no whole byte.
    whole = raw[:-1] if len(raw) % 4 == 1 else raw
    with suppress(binascii.Error, UnicodeDecodeError):
        decoded = base64.b64decode(whole + "=" * (-len(whole) % 4))
        if b":" in decoded and decoded.decode().isprintable():
            return True
    kinds = (str.islower, str.isupper, str.isdigit)
    return len(raw) >= 20 and all(any(map(is_kind, raw)) for is_kind in kinds)


def _shape(
    probes: str | tuple[str, ...],
    pattern: str,
    *,
    is_folded: bool = False,
    accepts: Callable[[str], bool] | None = None,
    is_long: bool = False,
) -> SecretShape:
    probes = (probes,) if isinstance(probes, str) else probes
    return SecretShape(probes, lambda: pattern, is_folded, accepts, is_long)


# These prefixes are followed by digits and letters of both cases, where a word has one case. Only
# lower-case letters are a token if they are longer than any word.
_MIXED: Final = r"(?:(?=[a-z]{0,40}[0-9A-Z])[A-Za-z0-9]{16,}|[a-z]{30,})"


def _own_shapes() -> Iterator[SecretShape]:
    """Yield the formats that are defined in this module."""
    yield _shape(
        r"sk-[A-Za-z0-9_-]{12}",
        _token("sk-", r"(?:(?=[a-z_-]{0,20}[0-9A-Z])[A-Za-z0-9_-]{12,}|[A-Za-z0-9_-]{20,})"),
    )
    yield _shape(
        r"A(?:KIA|SIA)[0-9A-Z]{12}",
        _token("A(?:KIA|SIA)", r"(?=[A-Z]{0,16}[0-9])[0-9A-Z]{12,}[A-Za-z0-9]*"),
    )
    yield _shape(r"AIza[A-Za-z0-9_-]{16}", _token("AIza", r"[A-Za-z0-9_-]{16,}"))
    yield _shape(r"AA[A-Za-z0-9_-]{33}", _token(r"\d", r"\d{7,9}:AA[A-Za-z0-9_-]{33,}"))
    yield _shape(r"xox[abeoprs]-", _token("xox[abeoprs]-", r"[A-Za-z0-9-]{8,}"))
    yield _shape("_" + _behind("gh[pousr]_"), _token("gh[pousr]_", r"[A-Za-z0-9_]{16,}"))
    yield _shape("_" + _behind("github_pat_"), _token("github_pat_", r"[A-Za-z0-9_]{20,}"))
    yield _shape("_" + _behind("npm_"), _token("npm_", r"[A-Za-z0-9]{36,}"))
    for prefix in ("hf_", "gsk_", "r8_"):
        yield _shape("_" + _behind(prefix), _token(prefix, _MIXED))
    yield _shape(
        "_" + _behind("k_live_", "k_test_"),
        _token("[rs]k_(?:live|test)_", r"[A-Za-z0-9]{16,}"),
    )
    yield _shape("_" + _behind("kahn_live_sk_"), _token("kahn_live_sk_", r"[A-Za-z0-9_-]{12,}"))
    yield _shape(
        "_" + _behind("wopr_live_", "wopr_test_"),
        _token("wopr_(?:live|test)_", r"[A-Za-z0-9_-]{20,}"),
    )
    yield _shape(
        "_" + _behind("cred_"),
        # A credential reference inside a mark names the secret and is not one.
        _token("cred_", r"(?<!\[REDACTED:cred_)")
        + r"(?:(?=[a-z_]{0,32}[0-9A-Z-])[A-Za-z0-9_-]{6,}|[a-z]{16,})",
    )
    yield _shape(
        "J" + _behind("eyJ") + r"[A-Za-z0-9_-]{8}",
        # Two parts are a truncated signed token. The token may be the end of a longer name
        # (`job-eyJ...`). The lookahead reads each name once, which keeps the search linear.
        _RUN
        + r"(?=[A-Za-z0-9_-]*+\.(?:[A-Za-z0-9_-]*+\.|eyJ))(?:[A-Za-z0-9_-]*?[_-])??"
        + r"(?P<secret>eyJ[A-Za-z0-9_-]{8,}+(?:(?:\.[A-Za-z0-9_-]*){2,4}|\.eyJ[A-Za-z0-9_-]*))",
        is_long=True,
    )
    yield _shape("Y" + _behind("CANARY"), re.escape(CANARY) + r"[A-Za-z0-9_-]*")
    yield _shape(
        "Y" + _behind("PRIVATE KEY"),
        # Without an end line the rest of the text is masked: a part of a key is secret too.
        r"(?:-----|---- )BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[\s\S]*?"
        r"(?:END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,8}-{2,5}|\Z)",
    )
    yield _shape("Y" + _behind("PuTTY"), r"PuTTY-User-Key-File-[\s\S]*")
    yield _shape(
        "/" + _behind(":/") + "/",
        r"""://[^\s/?\#@:\[\]"'<>{},\\]*:(?P<secret>[^\s/?\#@\[\]"'<>{},\\]+)@""",
        is_long=True,
    )
    bearer = (
        rf"{_GAP}(?:\\{{0,7}}[\"']|&(?:\#34|\#39|\#x27|quot);)?(?:(?=[A-Za-z./-]{{0,40}}(?:[0-9_+=~]|[a-z][A-Z])){_BEARER}{{8,}}"
        rf"|{_BEARER}{{20,}})"
    )
    yield _shape(
        r"rer" + _behind("bearer"),
        # Adjacent bearer tokens are one secret.
        _token("[Bb](?i:earer)", bearer) + f"(?:[Bb](?i:earer){bearer})*+",
        is_folded=True,
    )
    yield _shape(
        r"asic" + _behind("basic"),
        _token("[Bb](?i:asic)", _GAP) + r"(?P<secret>[A-Za-z0-9+/_-]{6,}(?:=|%3[Dd]){0,2})",
        is_folded=True,
        accepts=_is_basic,
    )
    yield _shape(
        (
            r"ass(?:word|wd|phrase)(?![a-z])",
            r"key" + _behind("[eist_-]key") + r"(?![a-z])",
            r"ret" + _behind("[it_-]secret") + r"(?![a-z])",
            r"ken" + _behind("[ish_-]token") + r"(?![a-z])",
        ),
        _ASSIGNED,
        is_folded=True,
    )
    yield _shape(
        r"key" + _behind("x-api-key"),
        # The value of this header is a key, also if it has only letters.
        rf"[xX]-(?i:api-key):\s{{0,4}}(?P<secret>(?!{_MARKED}{_MARK_END}|{_PLACEHOLDER}{_VALUE_END})"
        rf"<?{_UNQUOTED}{{10,}})",
        is_folded=True,
    )


class _Detector(NamedTuple):
    """A detector of the library: its module and class, a text in the used patterns, and the probe.

    `start` has a fixed width. Every match begins with it.
    """

    module: str
    name: str
    holding: str
    probe: str
    start: str


_DETECTORS: Final[tuple[_Detector, ...]] = (
    _Detector("aws", "AWSKeyDetector", "AKIA", r"A(?:3T[A-Z0-9]|BIA|CCA|KIA|SIA)[0-9A-Z]{16}", "A"),
    _Detector("azure_storage_key", "AzureStorageKeyDetector", "", r"AccountKey=", "AccountKey="),
    _Detector("discord", "DiscordBotTokenDetector", "", r"M[A-Za-z\d_-]{23,25}\.", "[MNO]"),
    _Detector("discord", "DiscordBotTokenDetector", "", r"N[A-Za-z\d_-]{23,25}\.", "[MNO]"),
    _Detector("discord", "DiscordBotTokenDetector", "", r"O[A-Za-z\d_-]{23,25}\.", "[MNO]"),
    _Detector("gitlab_token", "GitLabTokenDetector", "gl", r"gl[a-z]{2,5}-", "gl"),
    _Detector("gitlab_token", "GitLabTokenDetector", "GR1348941", r"R1348941", "GR1348941"),
    _Detector("mailchimp", "MailchimpDetector", "", r"-us[0-9]", "[0-9a-z]"),
    _Detector("pypi_token", "PypiTokenDetector", "", r"AgE", "pypi-AgE"),
    _Detector("sendgrid", "SendGridDetector", "", r"SG\.", r"SG\."),
    _Detector("slack", "SlackDetector", "hooks", "/" + _behind(r"hooks\.slack\.com/"), "[Hh]"),
    _Detector("square_oauth", "SquareOAuthDetector", "", r"q0csp-", "sq0csp-"),
    _Detector("twilio", "TwilioKeyDetector", "AC", r"AC[a-z0-9]{32}", "AC"),
    _Detector("twilio", "TwilioKeyDetector", "SK", r"SK[a-z0-9]{32}", "SK"),
)


@cache
def known_shapes() -> tuple[SecretShape, ...]:
    """Return every shape."""
    detected = (SecretShape((each.probe,), partial(_detector_pattern, each)) for each in _DETECTORS)
    return (*_own_shapes(), *detected)


def holds_shape(text: str) -> bool:
    """Return whether the text, plain or encoded as JSON, contains any shape."""
    return next(shapes_in(text), None) is not None


def shapes_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of every shape in the text."""
    for shape in _possible(text):
        yield from shape.spans(text)


def _possible(text: str) -> Collection[SecretShape]:
    """Return the shapes that the text may contain according to the probes."""
    plain, folded = _probe_searches()
    is_long = len(text) > WINDOW
    found: list[SecretShape] = []
    for rare, searches in plain:
        if rare in text:
            for search, shapes in searches:
                if _is_in(search, text) if is_long else search(text):
                    found += shapes
    lower = text.lower()
    for search, shapes in folded:
        if _is_in(search, lower) if is_long else search(lower):
            found += shapes
    return dict.fromkeys(found) if found else ()


_ProbeSearch: TypeAlias = tuple[_Search, tuple[SecretShape, ...]]


@cache
def _probe_searches() -> tuple[
    tuple[tuple[str, tuple[_ProbeSearch, ...]], ...], tuple[_ProbeSearch, ...]
]:
    """Return one search for all probes that begin with the same literal, with their shapes.

    A search of plain text is not needed if its literal is absent. The searches of lower-case text
    begin with two letters, because each letter occurs in almost every text.
    """
    plain: dict[str, list[_ProbeSearch]] = {}
    for literal, search in _joined(1, is_folded=False):
        plain.setdefault(literal, []).append(search)
    return (
        tuple((rare, tuple(searches)) for rare, searches in plain.items()),
        tuple(search for _, search in _joined(2, is_folded=True)),
    )


def _joined(width: int, *, is_folded: bool) -> Iterator[tuple[str, _ProbeSearch]]:
    joined: dict[str, list[tuple[str, SecretShape]]] = {}
    for shape in known_shapes():
        for probe in shape.probes if shape.is_folded is is_folded else ():
            joined.setdefault(probe[:width], []).append((probe[width:], shape))
    for literal, probes in joined.items():
        # A text may consist of underscores. The character before rules out most of them.
        guard = r"(?<=[8d-fkmopr-u]_)" if literal == "_" else ""
        search = re.compile(f"{literal}{guard}(?:{'|'.join(rest for rest, _ in probes)})").search
        yield literal, (search, tuple(shape for _, shape in probes))


def _detector_pattern(detector: _Detector) -> str:
    """Return a pattern of whole tokens, built from the patterns of the library.

    The library only reports secrets, so its patterns may begin or end inside a token. A search for
    the start of a format is faster than a search for a place where a token may begin. The library
    is imported when a probe is found: it imports some 340 modules that most processes never need.
    """
    module = importlib.import_module(f"detect_secrets.plugins.{detector.module}")
    denylist: Sequence[re.Pattern[str]] = getattr(module, detector.name).denylist
    formats = [_inline(each) for each in denylist if detector.holding in each.pattern]
    if not formats:
        raise LookupError(f"{detector.name} of detect-secrets has no format {detector.holding!r}")
    lead = f"(?:{detector.start}"
    if all(each.startswith(lead) and each[len(lead)] != "{" for each in formats):
        rest = "|".join(f"(?:{each.removeprefix(lead)}" for each in formats)
        return _token(detector.start, f"(?:{rest})[A-Za-z0-9_-]*")
    return f"(?={detector.start}){_WORD}(?:{'|'.join(formats)})[A-Za-z0-9_-]*"


def _inline(pattern: re.Pattern[str]) -> str:
    """Return a pattern with its flags inside, so that it can be combined with others.

    A test for the end of the token is removed: a character after a token must not hide it.
    """
    letters = "".join(
        letter
        for letter, flag in (("i", re.IGNORECASE), ("x", re.VERBOSE), ("s", re.DOTALL))
        if pattern.flags & flag
    )
    format_ = pattern.pattern.replace(r"(?!\w)", "")
    # The line break ends a comment that a verbose pattern may close with.
    return f"(?{letters}:{format_}\n)" if "x" in letters else f"(?{letters}:{format_})"

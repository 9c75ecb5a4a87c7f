"""Secret-shaped text: what a credential looks like even when nobody registered it.

The formats of the protocol's own list are written here; those of other vendors come from the
detectors of `detect-secrets`. Only detectors of a known format are taken: the entropy and
keyword ones would mask ordinary ids and hashes.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

MASK: Final = "[REDACTED]"
_Search: TypeAlias = Callable[[str], re.Match[str] | None]
CANARY: Final = "CANARY-openwop-CONFORMANCE-NEVER-SECRET"


class Shape(NamedTuple):
    """One credential format, with two cheap tests in front of its full pattern.

    `rare` is a literal that every match contains and `probe` a pattern that begins with a
    literal. Both are there because almost all text holds no secret and should pay next to
    nothing. A probe's length is bounded, so that hostile text cannot make it slow.
    """

    rare: str
    probe: _Search
    pattern: re.Pattern[str]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where the shape stands; only the group `secret` where the pattern has one."""
        if self.rare not in text or self.probe(text) is None:
            return
        group = "secret" if "secret" in self.pattern.groupindex else 0
        for match in self.pattern.finditer(text):
            yield match.span(group)


def _left(also: str = "") -> str:
    """Match where a token may begin: not inside a word, unless the letter ends an escape.

    In JSON text a line break before a token reads as the letter `n`, and in a URL a space
    reads as the digits `20`; a plain word boundary would miss the token behind it.
    """
    return rf"(?:(?<![A-Za-z0-9{also}])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{{4}})|(?<=%[0-9A-Fa-f]{{2}}))"


_WORD: Final = _left()
_RUN: Final = _left("_-")
_HYPHENLESS: Final = _left("-")

# A character of a bearer token. A slash may be one, so a token in a path ends where the next
# bearer begins.
_BEARER: Final = r"(?:(?![Bb]earer[\s:=+\\%])[A-Za-z0-9._~+/=-])"

# A repeat without an upper bound stands last, or cannot begin again inside its own run: that
# keeps every search linear in the text.
_OWN: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "-",
        r"sk-[A-Za-z0-9_-]{12}",
        _HYPHENLESS + r"sk-(?:(?=[a-z_-]{0,20}[0-9A-Z])[A-Za-z0-9_-]{12,}|[A-Za-z0-9_-]{20,})",
    ),
    (
        "A",
        r"A(?:KIA|SIA)[0-9A-Z]{12}",
        _WORD + r"A(?:KIA|SIA)(?=[A-Z]{0,16}[0-9])[0-9A-Z]{12,}[A-Za-z0-9]*",
    ),
    ("A", r"AIza[A-Za-z0-9_-]{16}", _WORD + r"AIza[A-Za-z0-9_-]{16,}"),
    ("A", r":AA[A-Za-z0-9_-]{33}", _WORD + r"\d{8,10}:AA[A-Za-z0-9_-]{33,}"),
    ("x", r"xox[abeoprs]-", _WORD + r"xox[abeoprs]-[A-Za-z0-9-]{8,}"),
    ("_", r"gh(?:[pousr]|ithub_pat)_", _WORD + r"gh[pousr]_[A-Za-z0-9_]{16,}"),
    ("_", r"github_pat_", _WORD + r"github_pat_[A-Za-z0-9_]{20,}"),
    ("_", r"npm_[A-Za-z0-9]{36}", _WORD + r"npm_[A-Za-z0-9]{36,}"),
    ("_", r"k_(?:live|test)_", _WORD + r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("_", r"kahn_live_sk_", _WORD + r"kahn_live_sk_[A-Za-z0-9_-]{12,}"),
    ("_", r"hf_[A-Za-z0-9]{34}", _WORD + r"hf_[A-Za-z0-9]{34,}"),
    ("_", r"wopr_(?:live|test)_", _WORD + r"wopr_(?:live|test)_[A-Za-z0-9_-]{20,}"),
    (
        "_",
        r"cred_[A-Za-z0-9_-]{6}",
        # A credential reference inside a mark names the secret and is not one.
        r"(?<!\[REDACTED:)"
        + _WORD
        + r"cred_(?:(?=[a-z_]{0,32}[0-9A-Z-])[A-Za-z0-9_-]{6,}|[a-z]{16,})",
    ),
    (
        "J",
        r"eyJ[A-Za-z0-9_-]{8}",
        # Two parts are the beginning of a signed token that was cut off. The token may end a longer
        # name (`job-eyJ...`). The lookahead reads each name once, which keeps the search linear.
        _RUN
        + r"(?=[A-Za-z0-9_-]*+\.(?:[A-Za-z0-9_-]*+\.|eyJ))(?:[A-Za-z0-9_-]*?[_-])??"
        + r"(?P<secret>eyJ[A-Za-z0-9_-]{8,}+(?:(?:\.[A-Za-z0-9_-]*){2,4}|\.eyJ[A-Za-z0-9_-]*))",
    ),
    (
        "earer",
        r"earer",
        _WORD
        + r"[Bb]earer(?:[\s:=+]|\\[nrt]|%20){1,8}"
        + rf"(?:(?=[A-Za-z.]{{0,40}}[0-9_+/=~-]|[A-Za-z]{{0,40}}[a-z][A-Z]){_BEARER}{{8,}}"
        + rf"|{_BEARER}{{20,}})",
    ),
    ("Y", re.escape(CANARY), re.escape(CANARY) + r"[A-Za-z0-9_-]*"),
    (
        "Y",
        r"PRIVATE KEY",
        # Without its end line the rest of the text is taken: half a key is still a key.
        r"(?:-----|---- )BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[\s\S]*?"
        r"(?:END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,8}-{2,5}|\Z)",
    ),
    ("Y", r"PuTTY-User-Key-File-", r"PuTTY-User-Key-File-[\s\S]*"),
    (
        "/",
        r"://",
        r"""://[^\s/?\#@:\[\]"'<>{},\\]+:(?P<secret>[^\s/?\#@\[\]"'<>{},\\]+)@""",
    ),
)


class _Detector(NamedTuple):
    """A detector of the library: its module, its class, which of its patterns, and the gate."""

    module: str
    name: str
    holding: str
    rare: str
    probe: str


_LIFTED: Final[tuple[_Detector, ...]] = (
    _Detector("aws", "AWSKeyDetector", "AKIA", "A", r"A(?:3T[A-Z0-9]|BIA|CCA|KIA|SIA)[0-9A-Z]{16}"),
    _Detector("azure_storage_key", "AzureStorageKeyDetector", "", "A", r"AccountKey="),
    _Detector("discord", "DiscordBotTokenDetector", "", "M", r"M[A-Za-z\d_-]{23,25}\."),
    _Detector("discord", "DiscordBotTokenDetector", "", "N", r"N[A-Za-z\d_-]{23,25}\."),
    _Detector("discord", "DiscordBotTokenDetector", "", "O", r"O[A-Za-z\d_-]{23,25}\."),
    _Detector("gitlab_token", "GitLabTokenDetector", "gl", "-", r"gl[a-z]{2,5}-"),
    _Detector("gitlab_token", "GitLabTokenDetector", "GR1348941", "R", r"GR1348941"),
    _Detector("mailchimp", "MailchimpDetector", "", "-", r"-us[0-9]"),
    _Detector("pypi_token", "PypiTokenDetector", "", "A", r"pypi-AgE"),
    _Detector("sendgrid", "SendGridDetector", "", "S", r"SG\."),
    _Detector("slack", "SlackDetector", "hooks", "/", r"hooks\.slack\.com/"),
    _Detector("square_oauth", "SquareOAuthDetector", "", "q", r"sq0csp-"),
    _Detector("twilio", "TwilioKeyDetector", "AC", "A", r"AC[a-z0-9]{32}"),
    _Detector("twilio", "TwilioKeyDetector", "SK", "S", r"SK[a-z0-9]{32}"),
)


@cache
def known_shapes() -> tuple[Shape, ...]:
    """Return every shape.

    The library is imported at the first call and not with this module: it brings an HTTP client
    and some 340 modules with it, an eighth of a second that a short command need not spend.
    """
    own = tuple(
        Shape(rare, re.compile(probe).search, re.compile(pattern)) for rare, probe, pattern in _OWN
    )
    return own + tuple(_lift(detector) for detector in _LIFTED)


def holds_shape(text: str) -> bool:
    """Tell whether the text, plain or encoded as JSON, holds any shape."""
    for rare, tests in _gates():
        if rare in text:
            for probe, search in tests:
                if probe(text) is not None and search(text) is not None:
                    return True
    return False


@cache
def _gates() -> tuple[tuple[str, tuple[tuple[_Search, _Search], ...]], ...]:
    """Order the shapes by their rare literal, so that its absence clears all of them at once."""
    gates: dict[str, list[tuple[_Search, _Search]]] = {}
    for shape in known_shapes():
        gates.setdefault(shape.rare, []).append((shape.probe, shape.pattern.search))
    return tuple((rare, tuple(tests)) for rare, tests in gates.items())


def _lift(detector: _Detector) -> Shape:
    """Build a shape from the library's patterns, from a token's beginning to its very end.

    The library only reports, so its patterns may stop inside a token or start in one.
    """
    module = importlib.import_module(f"detect_secrets.plugins.{detector.module}")
    denylist: Sequence[re.Pattern[str]] = getattr(module, detector.name).denylist
    formats = [_inline(each) for each in denylist if detector.holding in each.pattern]
    if not formats:
        raise LookupError(f"{detector.name} of detect-secrets has no format {detector.holding!r}")
    whole = re.compile(f"{_WORD}(?:{'|'.join(formats)})[A-Za-z0-9_-]*")
    return Shape(detector.rare, re.compile(detector.probe).search, whole)


def _inline(pattern: re.Pattern[str]) -> str:
    """Write a pattern with its flags inside, so that it can stand beside others."""
    letters = "".join(
        letter
        for letter, flag in (("i", re.IGNORECASE), ("x", re.VERBOSE), ("s", re.DOTALL))
        if pattern.flags & flag
    )
    # The line break ends a comment that a verbose pattern may close with.
    return (
        f"(?{letters}:{pattern.pattern}\n)" if "x" in letters else f"(?{letters}:{pattern.pattern})"
    )

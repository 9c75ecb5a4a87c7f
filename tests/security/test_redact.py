from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wopr.protocol.documents import Json
from wopr.security.redact import Redactor, Span, StreamRedactor
from wopr.security.shapes import CANARY, MASK

SECRET = 'pa55 "wörd"/+&\n?'
ID = "openwop-conformance-canary-secret"

# Few letters, so that values overlap each other and their marks.
TIGHT = st.text(alphabet="ab[]:RED", max_size=30)
VALUES = st.lists(st.text(alphabet="ab[]:RED", min_size=8, max_size=14), max_size=4)
TEXTS = st.text(max_size=60) | TIGHT
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def redactor(*values: str) -> Redactor:
    made = Redactor()
    for number, value in enumerate(values):
        made.register(f"secret-{number}", value)
    return made


def test_a_registered_value_is_replaced_by_the_name_of_its_secret() -> None:
    made = Redactor()
    made.register(ID, "correct horse battery")

    assert made.text("it is correct horse battery.") == f"it is [REDACTED:{ID}]."


def test_matching_is_case_sensitive() -> None:
    made = redactor("correct horse")

    assert made.text("Correct Horse") == "Correct Horse"


def test_a_value_under_eight_characters_is_not_registered() -> None:
    made = redactor("1234567")

    assert made.text("1234567") == "1234567"
    assert not made.may_hold_secret(b'"1234567"')


def test_the_longest_of_two_matching_values_wins() -> None:
    made = redactor("password", "password-of-the-admin")

    assert made.text("password-of-the-admin password") == "[REDACTED:secret-1] [REDACTED:secret-0]"


def test_overlapping_values_are_masked_completely() -> None:
    made = redactor("abcdefgh12", "gh12345xyz")

    assert made.text("<abcdefgh12345xyz>") == "<[REDACTED:secret-0]>"


def test_a_registered_value_inside_a_shape_gives_the_mark_its_name() -> None:
    made = redactor("0123456789abcdef")

    assert made.text("Bearer 0123456789abcdef") == "[REDACTED:secret-0]"


@pytest.mark.parametrize(
    "encoded",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote_plus(SECRET),
        base64.b64encode(SECRET.encode()).decode().rstrip("=")[:-1],
        base64.b64encode(b"u:" + SECRET.encode()).decode(),
        base64.b64encode(b"me:" + SECRET.encode() + b"!").decode(),
        base64.urlsafe_b64encode(b"user:" + SECRET.encode()).decode(),
    ],
)
def test_every_encoding_of_a_registered_value_is_found(encoded: str) -> None:
    made = redactor(SECRET)

    clean = made.text(f"x {encoded} y")

    assert "[REDACTED:secret-0]" in clean
    assert made.may_hold_secret(msgspec.json.encode({"a": encoded}))
    assert made.may_hold_secret(json.dumps({"a": encoded}).encode())


def test_names_and_values_are_redacted_at_any_depth() -> None:
    made = redactor("hunter2hunter2")

    clean = made.json({"a": [{"hunter2hunter2": ("x", "hunter2hunter2")}]})

    assert clean == {"a": [{"[REDACTED:secret-0]": ["x", "[REDACTED:secret-0]"]}]}


def test_unchanged_parts_are_shared_with_the_original() -> None:
    made = redactor("hunter2hunter2")
    untouched = {"deep": [1, 2.5, None, True, "text"]}

    clean = made.json({"a": untouched, "b": "hunter2hunter2"})

    assert clean["a"] is untouched
    assert made.json(untouched) is untouched


def test_a_number_with_secret_digits_is_masked() -> None:
    made = redactor("4929123412341234")

    assert made.json({"pin": 4929123412341234, "n": 7, "big": 10**400}) == {
        "pin": "[REDACTED:secret-0]",
        "n": 7,
        "big": 10**400,
    }


def test_a_document_nested_too_deeply_is_masked_whole() -> None:
    deep: Json = CANARY
    for _ in range(100_000):
        deep = [deep]

    clean = redactor().json(deep)

    assert clean == MASK
    # Taken apart step by step: freeing such a chain at once would recurse too.
    while isinstance(deep, list):
        deep = deep[0]


def test_an_id_that_is_itself_a_secret_is_not_named() -> None:
    made = Redactor()
    made.register("hunter2hunter2", "hunter2hunter2")
    made.register("sk-ant-0123456789abcdefghij", "another-secret")
    made.register("odd]id[", "a-third-secret")

    assert made.text("hunter2hunter2 another-secret a-third-secret") == f"{MASK} {MASK} {MASK}"


def test_a_credential_reference_names_the_secret_and_is_kept() -> None:
    made = Redactor()
    made.register("cred_a3b9c2", "hunter2hunter2")

    once = made.text("hunter2hunter2")

    assert once == "[REDACTED:cred_a3b9c2]"
    assert Redactor().text(once) is once


def test_a_secret_in_a_forged_mark_is_masked() -> None:
    made = redactor("hunter2hunter2")

    assert "hunter2" not in made.text("[REDACTED:hunter2hunter2]")
    assert "sk-ant" not in made.text("[REDACTED:sk-ant-0123456789abcdefghij]")


def test_a_value_that_equals_the_mark_is_redacted_once() -> None:
    made = redactor("REDACTED", "[REDACTED]")

    once = made.text("REDACTED")

    assert once == "[REDACTED:secret-0]" or once == MASK
    assert made.text(once) == once


def test_lone_surrogates_do_not_raise() -> None:
    made = redactor("\ud800secret-value")

    assert made.text("x\ud800secret-value") == "x[REDACTED:secret-0]"
    assert not made.may_hold_secret(b"\xff\xfe")


@given(VALUES, TEXTS)
def test_redacting_twice_changes_nothing_more(values: list[str], text: str) -> None:
    made = redactor(*values)

    once = made.text(text + "".join(values) + text)

    assert made.text(once) == once


# Adjacent secrets: the mask of one uncovers the beginning of the next.
GLUED = (
    "bearer=AgEIcHlwaS5vcmc",
    "bearer AgEIcHlwaS5vcmc",
    "bearer AgEIcHlwaS5vcmc1",
    "AAgEIcHlwaS5vcmcpassword&#34;:password='",
    "eyJaaaaaaaa_api_key: 'aM",
    "basic dXNlcjpwYXNzbearer:abcdefg1",
    "AKIA0123456789ABsk-abcdefghijk1",
)


@pytest.mark.parametrize("count", [2, 12, 13, 200, 2000])
@pytest.mark.parametrize("unit", GLUED)
def test_redacting_adjacent_secrets_twice_changes_nothing_more(unit: str, count: int) -> None:
    made = redactor()

    once = made.text(unit * count)

    assert made.text(once) == once


def test_nothing_of_many_adjacent_bearer_tokens_is_left() -> None:
    assert redactor().text("bearer AgEIcHlwaS5vcmc1" * 12) == MASK


@pytest.mark.parametrize("unit", GLUED)
def test_nested_secrets_need_a_limited_number_of_passes(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    search = Redactor.spans

    def counting(self: Redactor, text: str) -> list[Span]:
        searched.append(len(text))
        return search(self, text)

    monkeypatch.setattr(Redactor, "spans", counting)
    text = unit * 500

    redactor().text(text)

    assert sum(searched) <= 4 * len(text)


def test_text_that_uncovers_a_secret_in_every_pass_is_masked_whole() -> None:
    # Each value is complete only when the inner one has been replaced.
    made = Redactor()
    made.register("", "innermost")
    text = "innermost"
    for level in range(6):
        made.register("", f"{level}<{MASK}>{level}")
        text = f"{level}<{text}>{level}"
    text = f"before {text} after"

    assert made.text(text) == MASK


def test_an_excerpt_is_short_and_contains_no_part_of_a_cut_secret() -> None:
    made = redactor("correct horse battery staple")

    for padding in range(900, 1_400):
        shown = made.excerpt("x" * padding + " " + "correct horse battery staple" * 200, 1_000)
        assert len(shown) <= 1_000
        assert "correct" not in shown
    assert "correct" not in made.excerpt("correct horse battery staple" * 1_000, 1_000)


def test_an_excerpt_of_a_short_text_is_the_redacted_text() -> None:
    assert redactor("hunter2hunter2").excerpt("a hunter2hunter2", 20) == "a [REDACTED:secret-0]"


@given(VALUES, DOCUMENTS)
def test_redaction_accepts_any_document_and_is_idempotent(
    values: list[str], document: Json
) -> None:
    made = redactor(*values)

    once = made.json(document)

    assert made.json(once) == once


@given(VALUES, DOCUMENTS)
def test_a_document_cleared_by_the_pre_check_is_unchanged(
    values: list[str], document: Json
) -> None:
    made = redactor(*values)

    if not made.may_hold_secret(msgspec.json.encode(document)):
        assert made.json(document) is document


@given(st.text(min_size=8, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_no_registered_value_survives_in_any_encoding(secret: str, before: str, after: str) -> None:
    assume(secret not in "[REDACTED:secret-0]")
    made = redactor(secret)
    raw = secret.encode()
    forms = [
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe=""),
        quote_plus(secret),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
    ]

    for form in forms:
        document = {"a": [before + form + after], before + form + after: 0}
        assert made.may_hold_secret(msgspec.json.encode(document))
        assert form not in json.dumps(made.json(document), ensure_ascii=False)
        assert form not in made.text(before + form + after)


@given(
    st.binary(max_size=12), st.text(min_size=8, max_size=30, alphabet="abcXYZ019+/ "), st.binary()
)
def test_no_registered_value_survives_inside_longer_base64(
    before: bytes, secret: str, after: bytes
) -> None:
    made = redactor(secret)
    encoded = base64.b64encode(before + secret.encode() + after).decode()

    clean = made.text(encoded)

    assert "[REDACTED:secret-0]" in clean


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize(
    "secret",
    [
        "hunter2 hunter2 and some more words",
        "sk-ant-" + "0123456789abcdefghijklmnop",
        "Bearer " + "0123456789abcdefghijklmnop",
        "eyJhbGciOiJIUzI1NiJ9" + "." + "eyJzdWIi" * 300 + ".dozjgNryP4J3jVm",
        "-----BEGIN RSA "
        + "PRIVATE KEY-----\n"
        + "MIIEowIB\n" * 200
        + "-----END RSA PRIVATE KEY-----",
        CANARY,
    ],
    ids=["registered", "key", "bearer", "long token", "private key", "canary"],
)
def test_a_secret_across_chunks_is_redacted(secret: str, size: int) -> None:
    made = redactor("hunter2 hunter2 and some more words")
    stream = StreamRedactor(made)
    text = f"task-42 says: {secret} and goes on with many ordinary words. " * 2

    pieces = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(stream.close())

    assert "".join(pieces) == made.text(text)
    assert secret not in "".join(pieces)


def test_a_stream_of_plain_words_is_passed_on_without_delay() -> None:
    stream = StreamRedactor(redactor())

    passed = "".join(stream.feed("some ordinary words ") for _ in range(50))

    assert len(passed) > 800


def test_a_stream_without_blanks_does_not_accumulate() -> None:
    stream = StreamRedactor(redactor())

    passed = "".join(stream.feed("0123456789abcdef" * 64) for _ in range(64))

    assert len(passed) > 30_000


def test_an_endless_private_key_does_not_accumulate() -> None:
    stream = StreamRedactor(redactor())

    passed = stream.feed("-----BEGIN " + "PRIVATE KEY-----\n" + "MIIEowIB\n" * 10_000)

    assert passed == MASK


@given(st.lists(st.text(alphabet="ab sk-01\n", max_size=12), max_size=20), st.data())
def test_no_chunking_passes_a_registered_value(words: list[str], data: st.DataObject) -> None:
    secret = "ab sk-01 ab0"
    made = redactor(secret)
    stream = StreamRedactor(made)
    text = secret.join(words) + secret

    out = ""
    while text:
        size = data.draw(st.integers(1, 20))
        out += stream.feed(text[:size])
        text = text[size:]
    out += stream.close()

    assert secret not in out

from __future__ import annotations

import base64
import hashlib
import html
import importlib
import json
import re
import string
import time
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.security.redact import Redactor, StreamRedactor
from wopr.security.shapes import CANARY, LONG_WINDOW, MASK, WINDOW, holds_shape, shapes_in

# Assembled at run time, so that no scanner reports this file as a leak.
LONG = "Ab3dEf6hIj9lMn2pQr5tUv8xYz1BcD4FgH7JkL0MnP3"
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
PEM = (
    "-----BEGIN "
    + "RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\nq1w2e3r4\n-----END RSA PRIVATE KEY-----"
)

CREDENTIALS = {
    "openai": "sk-" + LONG,
    "openai project": "sk-proj-" + LONG,
    "anthropic": "sk-ant-api03-" + LONG,
    "annotation canary": "sk-canary-" + "rfc0056-do-not-leak-abc123",
    "words only": "sk-" + "this-is-a-planted-canary",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "aws session": "ASIA" + "IOSFODNN7EXAMPLE",
    "aws bearer": "ABIA" + "IOSFODNN7EXAMPLE",
    "google": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "slack": "xoxb-" + "123456789012-abcdefGHIJKL",
    "slack legacy": "xoxp-" + "1234-5678-abcdef",
    "slack webhook": "https://hooks.slack.com/services/" + "T0001/B0001/abcdefGHIJKL1234",
    "github": "ghp_" + LONG[:36],
    "github server": "ghs_" + LONG[:36],
    "github fine-grained": "github_pat_" + LONG,
    "gitlab": "glpat-" + LONG[:20],
    "gitlab runner": "GR1348941" + LONG[:20],
    "stripe": "sk_live_" + LONG[:24],
    "stripe test": "rk_test_" + LONG,
    "npm": "npm_" + LONG[:36],
    "pypi": "pypi-AgEIcHlwaS5vcmc" + LONG + LONG,
    "sendgrid": "SG." + LONG[:22] + "." + LONG[:43],
    "square": "sq0csp-" + LONG[:43],
    "telegram": "123456789:AA" + LONG[:33],
    "discord": "MT" + LONG[:23] + ".GhIjKl." + LONG[:27],
    "twilio account": "AC" + "0123456789abcdef" * 2,
    "twilio key": "SK" + "0123456789abcdef" * 2,
    "mailchimp": "0123456789abcdef" * 2 + "-us12",
    "azure storage": "AccountKey=" + LONG + LONG + "==",
    "jwt": JWT,
    "bearer": "Bearer " + "abc123def456",
    "bearer lower case": "bearer " + LONG,
    "credential reference": "cred_" + "a3b9c2",
    "private key": PEM,
    "half a private key": PEM[:60],
    "host key": "wopr_live_" + LONG,
    "kahn key": "kahn_live_sk_acme_" + LONG[:24],
    "hugging face": "hf_" + "abcdefghIJKLMNOPqrstuvwxyzABCDEFGH",
    "groq": "gsk_" + LONG[:40],
    "replicate": "r8_" + LONG[:37],
    "bearer upper case": "BEARER " + LONG[:30],
    "basic": "Basic " + base64.b64encode(b"user:p4ssw0rd-of-mine").decode(),
    "basic lower case": "basic " + base64.b64encode(b"user:p4ssw0rd-of-mine").decode(),
    "password": "password=" + "correct-horse-17",
    "password upper case": "PGPASSWORD=" + "correct-horse-17",
    "password of YAML": "db_password: " + "correct-horse-17",
    "password of JSON": '"password": "' + 'correct horse, 17"',
    "key header": "x-api-key: " + "abc123def456ghi",
    "key header in capitals": "X-API-KEY: " + "abc123def456ghi",
    "key header of letters": "X-API-KEY: " + "abcdefghijkl",
    "quoted bearer": 'Bearer "' + 'abcDEF123456ghi"',
    "hugging face of letters": "hf_" + "abcdefghijklmnopqrstuvwxyzabcdefgh",
    "escaped equals sign": "password\\u003d" + "hunter2hunter",
    "aws secret": "aws_secret_access_key=" + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzKEYx",
    "client secret": "client_secret=" + "abc123def456ghi",
    "access token": "access_token=" + "abc123def456ghi",
    "canary": CANARY,
    "canary with a tail": "sk-ant-" + CANARY + "-cost-attr-leak",
}

ORDINARY = (
    "0196f3a2-7c1e-7b3a-9f5e-2a1b3c4d5e6f",
    "2026-03-01T12:00:00.123Z",
    hashlib.sha256(b"anything").hexdigest(),
    "sha256:" + hashlib.sha256(b"anything").hexdigest(),
    base64.b64encode(b'{"a": "an ordinary text that was encoded"}').decode(),
    base64.b64encode(hashlib.sha512(b"noise").digest()).decode(),
    "https://example.com:8443/a/b?c=d:e@f#g",
    "mailto:someone@example.com",
    "core.conformance.identity-agent",
    "core.workflowChain.confidence-escalated",
    "task-0196f3a2-7c1e-7b3a-9f5e-2a1b3c4d5e6f",
    "risk-assessment-2026-quarter-three",
    "ask-user",
    "disk-usage-of-the-whole-cluster-1",
    "sk-SK",
    "sk-learn-pipeline",
    "ASIAPACIFICREGION",
    "the bearer of bad news, Bearer authentication",
    'Bearer realm="wopr"',
    "sacred_texts_of_2026",
    "cred_expires_at",
    "npm_config_registry",
    "highs_and_lows_of_the_market_2026",
    "20240101:550e8400-e29b-41d4-a716-446655440000",
    "eyJhbGciOiJIUzI1NiJ9",
    "openwop-conformance-canary-secret",
    "[REDACTED]",
    "[REDACTED:cred_a3b9c2]",
    "PRIVATE KEY handling is described in chapter 4",
    "glossary-of-terms-used-in-this-document",
    "set password= in the file, then password:",
    "password: required, passphrase: optional, api key: none",
    "def login(password=None, api_key=None)",
    "def login(user, password=None):\n    self.password = password\n    key = hash(password)",
    "password = hash(password), passwd=getpass(); login(password=user.password)",
    "use bearer token-based authentication, bearer tokens/cookies",
    "password={{inputs.password}}",
    "password=${PASSWORD} api_key=$API_KEY",
    'password="<your password>" client_secret=***',
    "password=<your-key> api_key=<API_KEY>, x-api-key: <your-long-api-key>",
    "Server=db;Password={{variables.password}};Database=main;access_token=${TOKEN}",
    "f(password=None,api_key=None) password=${{ secrets.PASSWORD }}",
    'password="${DB_PASSWORD}" passwd="..." api_key="****************"',
    "passwords and secrets: 17, tokens: 123, max_tokens=4096",
    "password_hash_rounds=100000 api_key_id=abc123def456",
    "a basic understanding, Basic JavaScript, BASIC operations",
    'Basic realm="wopr"',
    "the keys: a1, b2; monkey=abc123def456",
    "hf_transformers_config gsk_value r8_x",
)


# Names and schemes before a credential may remain.
NAMES = re.compile(
    r"\"?(?:db_|PG)?password\"?(?:[=:]|\\u003d) ?\"?|x-api-key: |aws_secret_access_key="
    r"|client_secret=|access_token=|basic ",
    re.IGNORECASE,
)

# Text that may be directly before and after a credential.
GLUE = st.text(alphabet="-_./:,;()[]{}<>#!?~^`| \n\t", max_size=6)
WORDS = st.sampled_from(["", "prefix_", "x-", "a_b-", "url/", "key: ", "é"])


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor()


@pytest.mark.parametrize("secret", CREDENTIALS.values(), ids=CREDENTIALS.keys())
def test_a_credential_leaves_no_trace_in_text(redactor: Redactor, secret: str) -> None:
    clean = redactor.text(f"before {secret}\nafter")

    assert clean.startswith("before ")
    assert MASK in clean
    assert not _traces(secret, clean)


@pytest.mark.parametrize("secret", CREDENTIALS.values(), ids=CREDENTIALS.keys())
@pytest.mark.parametrize(
    "place",
    [
        lambda s: s,
        lambda s: {"a": s},
        lambda s: {s: 1},
        lambda s: [[{"a": [s]}]],
        lambda s: {"a": {"b": {s: {"c": [1, None, f'say "{s}" now']}}}},
        lambda s: msgspec.json.encode({"inner": f"\n{s}"}).decode(),
    ],
    ids=["bare", "member", "name", "nested", "deep", "JSON in a string"],
)
def test_a_credential_is_found_at_every_depth_and_in_names(
    redactor: Redactor, secret: str, place: object
) -> None:
    document = place(secret)  # type: ignore[operator]  # a parameter of pytest has no type

    assert redactor.may_hold_secret(msgspec.json.encode(document))
    assert not _traces(secret, msgspec.json.encode(redactor.json(document)).decode())


@pytest.mark.parametrize("before", ["\n", "\t", "\x07", '"', "=", "%20", ":", "/", "key_"])
def test_a_credential_is_found_directly_after_a_separator(redactor: Redactor, before: str) -> None:
    text = before + CREDENTIALS["anthropic"]

    assert redactor.text(text) == before + MASK
    assert redactor.may_hold_secret(msgspec.json.encode(text))


@pytest.mark.parametrize("before", ["nonexistent-", "a_", "-", "two-words_"])
def test_a_signed_token_is_found_at_the_end_of_a_longer_name(
    redactor: Redactor, before: str
) -> None:
    text = before + JWT

    assert redactor.text(text) == before + MASK
    assert redactor.may_hold_secret(msgspec.json.encode(text))


@pytest.mark.parametrize(
    "text",
    [
        "password=***hunter2",
        "password=***,hunter2",
        "password=${x}hunter2real",
        "password=${PASSWORD:-hunter2}",
        "password={{x}}hunter2",
        "password=$SECRET-hunter2",
        "password=...hunter2",
        "password=null!hunter2",
        "password=<hunter2pw",
        "x-api-key: <Hunter2key99",
        "x-api-key: ***hunter2key99",
        'password="*** hunter2"',
        'password="<your> hunter2"',
        '{"password":"<Hunter2pw>"}',
        '{"password": "null hunter2"}',
        '{\\"password\\": \\"${x}hunter2\\"}',
    ],
)
def test_a_value_that_only_begins_like_a_placeholder_is_masked(
    redactor: Redactor, text: str
) -> None:
    clean = redactor.text(text)

    assert MASK in clean
    assert "unter2" not in clean
    assert redactor.text(clean) == clean


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("<Hunter2pw>", MASK),
        ("***hunter2", MASK),
        ("*** hunter2", MASK),
        ("${x}hunter2", MASK),
        ("[REDACTED]hunter2", MASK),
        ("<your password>", "<your password>"),
        ("{{inputs.password}}", "{{inputs.password}}"),
        ("[REDACTED:cred_a3b9c2]", "[REDACTED:cred_a3b9c2]"),
    ],
)
def test_a_member_named_password_is_masked_unless_it_is_a_placeholder(
    redactor: Redactor, value: str, expected: str
) -> None:
    assert redactor.json({"password": value}) == {"password": expected}


def test_the_password_of_a_url_is_masked_and_the_url_stays_readable(redactor: Redactor) -> None:
    clean = redactor.text("see https://bob:hunter2@example.com/x?a=b")

    assert clean == "see https://bob:[REDACTED]@example.com/x?a=b"


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_returned_as_the_same_object(redactor: Redactor, text: str) -> None:
    document = {"a": [text], text: 1}

    assert redactor.text(text) is text
    assert redactor.json(document) is document
    assert not redactor.may_hold_secret(msgspec.json.encode(document))


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=200))
def test_hashes_and_encoded_bytes_are_not_secrets(identity: bytes, content: bytes) -> None:
    words = (
        f"task-{uuid.UUID(bytes=identity)}",
        hashlib.sha256(content).hexdigest(),
        base64.b64encode(content).decode(),
    )

    assert not any(holds_shape(word) for word in words)


def test_every_private_key_header_known_to_the_library_is_masked(redactor: Redactor) -> None:
    module = importlib.import_module("detect_secrets.plugins.private_key")
    headers: list[re.Pattern[str]] = module.PrivateKeyDetector.denylist

    for header in headers:
        text = f"-----{header.pattern}-----\nc2VjcmV0"
        assert "c2VjcmV0" not in redactor.text(text)


def _wrapped(document: object, depth: int) -> object:
    for level in range(depth):
        document = [document] if level % 2 else {"a": document}
    return document


def test_a_named_value_is_found_in_json_text_within_json_text_at_any_usual_depth() -> None:
    text = '"password": "correct horse, 17"'
    for _ in range(4):
        assert "correct horse" not in Redactor().text(text)
        assert Redactor().may_hold_secret(text.encode())
        text = json.dumps(text)


@given(
    st.sampled_from(sorted(CREDENTIALS)),
    WORDS,
    GLUE,
    GLUE,
    st.integers(0, 5),
    st.sampled_from(["plain", "JSON", "JSON in JSON", "HTML"]),
)
def test_text_adjacent_to_a_credential_does_not_hide_it(
    name: str, word: str, before: str, after: str, depth: int, encoding: str
) -> None:
    secret = CREDENTIALS[name]
    text = word + before + secret + after
    if encoding != "plain":
        text = html.escape(text) if encoding == "HTML" else json.dumps(text)
    if encoding == "JSON in JSON":
        text = json.dumps(text)
    document = _wrapped({"x": text, text: 1}, depth)

    assert Redactor().may_hold_secret(msgspec.json.encode(document))
    clean = json.dumps(Redactor().json(document), ensure_ascii=False)
    assert not _traces(secret, clean)
    assert not _traces(secret, Redactor().text(text))


@given(st.text(alphabet=string.ascii_letters + " .,;!?'()\n-éü", max_size=400))
def test_text_without_digits_and_assignments_is_unchanged(text: str) -> None:
    text = re.sub(r"[A-Za-z-]{12,}", "word", text)

    assert Redactor().text(text) is text


@pytest.mark.parametrize("name", ["password", "DB_PASSWORD", "apiKey", "x-api-key", "clientSecret"])
def test_a_member_with_a_secret_name_is_masked(redactor: Redactor, name: str) -> None:
    document = {"a": [{name: "q"}], "b": {name: ""}, "c": {name: 7}, "d": {f"{name}s": "q"}}

    clean = redactor.json(document)

    assert clean == {**document, "a": [{name: MASK}]}
    assert redactor.json(clean) == clean
    assert redactor.may_hold_secret(msgspec.json.encode(document))


def test_a_mark_does_not_protect_the_text_after_it(redactor: Redactor) -> None:
    assert redactor.json({"password": f"{MASK}hunter2"}) == {"password": MASK}
    assert redactor.text(f"password={MASK}hunter2") == f"password={MASK}"


# Texts designed to be slow: beginnings of credentials, marks, and values in all states.
HOSTILE = [
    "sk-",
    "-eyJabcdefgh",
    "-eyJabcdefgh.",
    "eyJ",
    "cred_",
    "://a:",
    "Bearer ",
    "bearer bearer%20",
    "Basic ",
    "basic dXNlcjpw",
    "gl",
    "glpat-",
    "-us1",
    "M",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY",
    "password=",
    "password: ",
    '"password":"',
    '\\"password\\":\\"x\\\\',
    "password=[REDACTED",
    "api_key=[REDACTED:a] ",
    "secret_",
    "[REDACTED:",
    "[REDACTED] ",
    "[REDACTED:secret-0] ",
    "hunter2hunter2 ",
    "[REDACTED]hunter2hunter2",
    "hunter2hunter",
    "aaaaaaaaaaaa",
    "&#34;password&#34;:&#34;",
    "%20",
    "\\u0041",
    "bearer=AgEIcHlwaS5vcmc",
    "bearer AgEIcHlwaS5vcmc1",
    "AAgEIcHlwaS5vcmcpassword&#34;:password='",
    "eyJaaaaaaaa_api_key: 'aM",
    "x-api-key: [REDACTED",
    'bearer "',
    "password\\u003d",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_grows_no_faster_than_the_text(unit: str) -> None:
    made = Redactor()
    for number, value in enumerate(
        ("hunter2hunter2", "REDACTED", "aaaaaaaa", "[REDACTED:secret-0]")
    ):
        made.register(f"secret-{number}", value)

    def seconds(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        encoded = msgspec.json.encode({"a": text, "b": {"password": text}})

        def once() -> float:
            began = time.thread_time()
            made.may_hold_secret(encoded)
            made.text(text)
            made.json({text: text})
            return time.thread_time() - began

        return min(once() for _ in range(3))

    seconds(1000)
    few, many = seconds(9_000), seconds(36_000)

    # Linear work takes four times as long, quadratic work sixteen times; below a millisecond the
    # clock is too inexact.
    assert many < 8 * max(few, 0.001)


def test_a_stream_in_small_pieces_costs_no_more_than_its_length() -> None:
    def seconds(size: int) -> float:
        stream = StreamRedactor(Redactor())
        began = time.thread_time()
        for _ in range(size // 2):
            stream.feed("aB")
        stream.close()
        return time.thread_time() - began

    seconds(1000)
    few, many = min(seconds(4_000) for _ in range(3)), min(seconds(16_000) for _ in range(3))

    assert many < 8 * max(few, 0.001)


def test_filtering_many_values_costs_no_more_than_their_number() -> None:
    def seconds(count: int) -> float:
        made = Redactor()
        began = time.thread_time()
        for number in range(count):
            made.register("hidden", f"value-{number:010d}")
        return time.thread_time() - began

    seconds(10)
    few, many = min(seconds(100) for _ in range(3)), min(seconds(400) for _ in range(3))

    assert many < 8 * max(few, 0.001)


def _traces(secret: str, text: str) -> list[str]:
    """Find stretches of ten characters of the secret that are not common to every secret."""
    secret = NAMES.sub("", secret, count=1) if NAMES.match(secret) else secret
    pieces = (secret[start : start + 10] for start in range(max(1, len(secret) - 9)))
    harmless = ("https://", "hooks.slack", "-----", "PRIVATE KEY")
    return [p for p in pieces if p in text and not any(p in h or h in p for h in harmless)]


@pytest.mark.parametrize("name", CREDENTIALS)
@pytest.mark.parametrize("edge", [WINDOW, LONG_WINDOW])
def test_a_credential_is_found_across_the_windows_of_a_long_text(name: str, edge: int) -> None:
    credential = CREDENTIALS[name]
    [alone, *_] = sorted(shapes_in(f"{credential} "))

    for before in (edge - len(credential) - 1, edge - len(credential) // 2, edge - 1, edge):
        text = f"{'o ' * (before // 2)}{'.' * (before % 2)}{credential} {'o ' * edge}"
        [found, *_] = sorted(shapes_in(text))
        assert found[0] == before + alone[0]
        assert MASK in Redactor().text(text)


def test_a_long_text_without_credentials_is_unchanged() -> None:
    text = " ".join(ORDINARY) * (2 * LONG_WINDOW // 1_000)

    assert Redactor().text(text) is text


def test_an_overlong_credential_is_masked_to_the_end_of_the_text() -> None:
    text = f"first Bearer {LONG * 4_000} and what follows"

    assert Redactor().text(text) == f"first {MASK}"


def test_a_text_with_very_many_credentials_is_masked_whole() -> None:
    assert Redactor().text("password=abcd " * 5_000).count(MASK) == 5_000
    assert Redactor().text("words first " + "password=abcd " * 20_000) == MASK

from __future__ import annotations

import base64
import hashlib
import importlib
import re
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.security.redact import Redactor
from wopr.security.shapes import CANARY, MASK, holds_shape

# Assembled at run time, so that no scanner takes this file for a leak.
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
    "desk-sk-0123456789abcdef0123",
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
)


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
def test_a_credential_is_found_right_behind_a_separator(redactor: Redactor, before: str) -> None:
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


def test_the_password_of_a_url_is_masked_and_the_url_stays_readable(redactor: Redactor) -> None:
    clean = redactor.text("see https://bob:hunter2@example.com/x?a=b")

    assert clean == "see https://bob:[REDACTED]@example.com/x?a=b"


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_the_very_same_object_afterwards(redactor: Redactor, text: str) -> None:
    document = {"a": [text], text: 1}

    assert redactor.text(text) is text
    assert redactor.json(document) is document
    assert not redactor.may_hold_secret(msgspec.json.encode(document))


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=200))
def test_ids_hashes_and_encoded_bytes_are_no_secrets(identity: bytes, content: bytes) -> None:
    words = (
        f"task-{uuid.UUID(bytes=identity)}",
        hashlib.sha256(content).hexdigest(),
        base64.b64encode(content).decode(),
    )

    assert not any(holds_shape(word) for word in words)


def test_every_private_key_header_the_library_knows_is_masked(redactor: Redactor) -> None:
    module = importlib.import_module("detect_secrets.plugins.private_key")
    headers: list[re.Pattern[str]] = module.PrivateKeyDetector.denylist

    for header in headers:
        text = f"-----{header.pattern}-----\nc2VjcmV0"
        assert "c2VjcmV0" not in redactor.text(text)


@pytest.mark.parametrize(
    "unit",
    [
        "sk-",
        "-eyJabcdefgh",
        "-eyJabcdefgh.",
        "eyJ",
        "cred_",
        "://a:",
        "Bearer ",
        "gl",
        "-us1",
        "M",
        "-----BEGIN ",
    ],
)
def test_hostile_repetition_is_examined_in_linear_time(redactor: Redactor, unit: str) -> None:
    text = unit * 60_000

    # The timeout of the test run is the assertion: a quadratic search takes minutes.
    redactor.may_hold_secret(text.encode())
    redactor.text(text)


def _traces(secret: str, text: str) -> list[str]:
    """Find stretches of ten characters of the secret that are not common to every secret."""
    pieces = (secret[start : start + 10] for start in range(max(1, len(secret) - 9)))
    harmless = ("https://", "hooks.slack", "-----", "PRIVATE KEY")
    return [p for p in pieces if p in text and not any(p in h or h in p for h in harmless)]

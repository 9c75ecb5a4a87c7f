from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.security.api_keys import (
    ROLES,
    Principal,
    hash_key,
    is_test_key,
    new_key,
    parse_env_keys,
    scopes_of,
)

SCOPES = frozenset(
    """
    manifest:read runs:create runs:read runs:cancel runs:annotate approvals:respond artifacts:read
    webhooks:manage audit:read host:read workflows:write agents:write fleet:ingest fleet:read
    keys:manage
    """.split()
)


@pytest.mark.parametrize(("is_test", "prefix"), [(False, "wopr_live_"), (True, "wopr_test_")])
def test_a_new_key_says_whether_it_is_for_testing(is_test: bool, prefix: str) -> None:
    key = new_key(bytes(range(32)), is_test=is_test)

    assert key.startswith(prefix)
    assert is_test_key(key) is is_test


@given(st.binary(min_size=32, max_size=48))
def test_a_new_key_is_valid_in_the_environment_and_in_a_header(secret: bytes) -> None:
    key = new_key(secret, is_test=False)

    assert not set(key) & set(":, \t=+/")
    assert parse_env_keys(f"{key}:acme")[0].key == key


def test_a_key_of_too_little_randomness_is_refused() -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        new_key(b"short", is_test=True)


def test_a_key_is_stored_as_its_sha256() -> None:
    assert hash_key("wopr_live_x") == hashlib.sha256(b"wopr_live_x").digest()


def test_an_admin_has_every_scope_except_the_reserved_one() -> None:
    assert ROLES["admin"] == SCOPES
    assert not any("conformance:author" in scopes for scopes in ROLES.values())


def test_every_role_has_known_scopes_only() -> None:
    of_tenants = {"admin", "operator", "developer", "reviewer", "viewer", "ingest"}
    assert set(ROLES) == of_tenants | {"metrics"}
    assert all(ROLES[role] <= SCOPES for role in of_tenants)
    assert ROLES["metrics"] == {"metrics:read"}


def test_a_viewer_changes_nothing_and_an_ingest_key_reads_nothing() -> None:
    assert all(scope.endswith(":read") for scope in ROLES["viewer"])
    assert ROLES["ingest"] == {"fleet:ingest"}


@pytest.mark.parametrize("role", ["operator", "developer", "reviewer", "viewer", "ingest"])
def test_only_an_admin_manages_keys(role: str) -> None:
    assert "keys:manage" not in ROLES[role]


def test_an_unknown_role_may_do_nothing() -> None:
    assert scopes_of("root") == frozenset()


def test_a_principal_may_do_exactly_what_its_scopes_allow() -> None:
    viewer = Principal(
        key_id="k1", tenant="acme", role="viewer", scopes=scopes_of("viewer"), is_test=False
    )

    assert viewer.may("runs:read")
    assert not viewer.may("runs:create")
    assert not viewer.may("runs")


def test_keys_are_read_from_the_environment() -> None:
    keys = parse_env_keys("first-key-of-acme:acme, wopr_test_second:globex:viewer ,")

    assert [(k.key, k.tenant, k.role, k.is_test) for k in keys] == [
        ("first-key-of-acme", "acme", "admin", False),
        ("wopr_test_second", "globex", "viewer", True),
    ]


def test_no_keys_in_the_environment_are_no_keys() -> None:
    assert parse_env_keys("") == ()
    assert parse_env_keys(" , ") == ()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("test_0123456789ab", True),
        ("test-0123456789ab", True),
        ("latest-0123456789", False),
        ("testify0123456789", False),
    ],
)
def test_an_operator_s_key_with_the_test_prefix_is_for_testing(key: str, expected: bool) -> None:
    assert parse_env_keys(f"{key}:acme")[0].is_test is expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a-key-of-16-chars:acme,s3cr3t", "entry 2 of WOPR_API_KEYS has 1 fields"),
        ("s3cr3t:acme:admin:more", "entry 1 of WOPR_API_KEYS has 4 fields"),
        ("s3cr3t:", "empty field"),
        (":s3cr3t", "empty field"),
        ("s3cr3t: :admin", "empty field"),
        ("acme:admin:s3cr3t", "unknown role; the roles are admin, operator"),
        ("s3cr3t-0123456789:acme,s3cr3t-0123456789:globex", "same key twice"),
        ("s3cr3t-01234567:acme", "entry 1 of WOPR_API_KEYS has a key shorter than 16 characters"),
    ],
)
def test_an_invalid_entry_is_named_by_its_number_and_not_repeated(
    text: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        parse_env_keys(text)

    assert "s3cr3t" not in str(refusal.value)


def test_a_configured_key_is_not_visible_when_printed() -> None:
    assert "s3cr3t" not in repr(parse_env_keys("s3cr3t-0123456789:acme"))

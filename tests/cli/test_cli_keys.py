from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from wopr.security.api_keys import hash_key
from wopr.store.open import open_store
from wopr.store.port import KeyRow

if TYPE_CHECKING:
    from tests.cli.conftest import Wopr


def created(local: Wopr, *args: str) -> dict[str, Any]:
    result = local("keys", "create", "--json", *args)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def listed(local: Wopr) -> dict[str, dict[str, Any]]:
    items = json.loads(local("keys", "list", "--json").stdout)["items"]
    return {item["keyId"]: item for item in items}


def stored(key: str, url: str = "sqlite:///data/wopr.db") -> KeyRow | None:
    async def look() -> KeyRow | None:
        store = await open_store(url)
        try:
            return await store.key_by_hash(hash_key(key))
        finally:
            await store.close()

    return anyio.run(look)


def test_only_a_new_key_is_printed_and_its_hash_is_stored(local: Wopr) -> None:
    result = local("keys", "create", "--tenant", "acme", "--role", "viewer", "--name", "ci")

    row = stored(result.stdout.strip())

    assert result.exit_code == 0
    assert row is not None
    assert (row.tenant, row.role, row.name, row.is_test) == ("acme", "viewer", "ci", False)


def test_a_key_can_have_scopes_an_expiry_and_the_test_mark(local: Wopr) -> None:
    made = created(local, "--scope", "a:b", "--scope", "c:d", "--expires", "90d", "--test")

    row = stored(made["key"])

    assert row is not None
    assert row.scopes == ("a:b", "c:d")
    assert row.is_test
    assert row.expires_at == row.created_at + 90 * 86_400_000


def test_the_list_never_shows_keys(local: Wopr) -> None:
    made = created(local)

    assert made["key"] not in local("keys", "list").stdout
    assert made["key"] not in local("keys", "list", "--json").stdout
    assert made["keyId"] in local("keys", "list").stdout


def test_the_list_can_be_limited_to_one_tenant(local: Wopr) -> None:
    created(local, "--tenant", "a")
    created(local, "--tenant", "b")

    items = json.loads(local("keys", "list", "--tenant", "b", "--json").stdout)["items"]

    assert [item["tenant"] for item in items] == ["b"]


def test_a_rotated_key_stays_valid_for_its_grace_period(local: Wopr) -> None:
    old = created(local, "--tenant", "acme", "--role", "viewer")

    new = json.loads(local("keys", "rotate", old["keyId"], "--grace", "1h", "--json").stdout)

    before, after = stored(old["key"]), stored(new["key"])
    assert before is not None
    assert after is not None
    assert before.replaced_by == after.key_id == new["keyId"]
    assert before.expires_at == after.created_at + 3_600_000
    assert (after.tenant, after.role, after.expires_at) == ("acme", "viewer", None)
    assert listed(local)[old["keyId"]]["state"] == "replaced"


def test_a_grace_period_of_zero_ends_the_old_key_now(local: Wopr) -> None:
    old = created(local)

    local("keys", "rotate", old["keyId"], "--grace", "0")

    assert listed(local)[old["keyId"]]["state"] == "expired"


def test_a_grace_period_never_extends_the_expiry(local: Wopr) -> None:
    old = created(local, "--expires", "1h")

    new = json.loads(local("keys", "rotate", old["keyId"], "--grace", "24h", "--json").stdout)

    states = listed(local)
    assert states[old["keyId"]]["expiresAt"] == old["expiresAt"]
    assert new["expiresAt"] >= old["expiresAt"]


def test_a_revoked_key_stays_revoked_and_cannot_be_rotated(local: Wopr) -> None:
    made = created(local)

    assert local("keys", "revoke", made["keyId"]).exit_code == 0
    first = listed(local)[made["keyId"]]["revokedAt"]
    assert local("keys", "revoke", made["keyId"]).exit_code == 0

    assert listed(local)[made["keyId"]]["revokedAt"] == first
    assert local("keys", "rotate", made["keyId"]).exit_code == 5


@pytest.mark.parametrize("verb", ["rotate", "revoke"])
def test_an_unknown_key_is_not_found(local: Wopr, verb: str) -> None:
    assert local("keys", verb, "key_none").exit_code == 3


@pytest.mark.parametrize(
    "args",
    [
        ("create", "--role", "emperor"),
        ("create", "--expires", "soon"),
        ("rotate", "key_x", "--grace", "-1h"),
        ("list", "--db", "mysql://secret@host/db"),
    ],
)
def test_wrong_usage_ends_with_2(local: Wopr, args: tuple[str, ...]) -> None:
    assert local("keys", *args).exit_code == 2


def test_the_database_can_be_at_another_place(local: Wopr, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/elsewhere.db"

    made = created(local, "--db", url)

    assert stored(made["key"], url) is not None
    assert not (tmp_path / "data").exists()

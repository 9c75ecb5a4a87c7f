from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from wopr.agents.credentials import Credentials
from wopr.process.keys import load_host_key
from wopr.security.credential_names import SEAL_PURPOSE
from wopr.security.encryption import Seal, derive
from wopr.security.redact import Redactors
from wopr.store.open import open_store

if TYPE_CHECKING:
    from tests.cli.conftest import Wopr

VALUE = "correct-horse-battery"


def resolved(tenant: str, name: str) -> str:
    async def look() -> str:
        store = await open_store("sqlite:///data/wopr.db")
        try:
            seal = Seal(derive(load_host_key(Path("data"), {}), SEAL_PURPOSE))
            return await Credentials(store, seal, Redactors(), environment={}).resolve(tenant, name)
        finally:
            await store.close()

    return anyio.run(look)


def test_a_credential_is_stored_encrypted_and_the_host_can_read_it(local: Wopr) -> None:
    result = local("secrets", "set", "mine", "--tenant", "acme", stdin=f"{VALUE}\n")

    assert result.exit_code == 0, result.stderr
    assert VALUE not in result.stdout + result.stderr
    assert resolved("acme", "mine") == VALUE
    assert not [p for p in Path("data").rglob("*") if VALUE.encode() in p.read_bytes()]


def test_the_list_shows_names_and_audience_and_no_values(local: Wopr) -> None:
    local("secrets", "set", "mine", "--for", "openai", "--for", "api.example.com", stdin=VALUE)

    shown = local("secrets", "list").stdout
    listed = json.loads(local("secrets", "list", "--json").stdout)["items"]

    assert "api.example.com" in shown
    assert VALUE not in shown
    assert [(each["name"], each["audience"]) for each in listed] == [
        ("mine", ["openai", "api.example.com"])
    ]


def test_a_removed_credential_is_gone(local: Wopr) -> None:
    local("secrets", "set", "mine", stdin=VALUE)

    assert local("secrets", "remove", "mine").exit_code == 0

    assert json.loads(local("secrets", "list", "--json").stdout)["items"] == []
    again = local("secrets", "remove", "mine")
    assert again.exit_code == 3
    assert "no credential mine" in again.stderr


def test_an_invalid_name_or_value_is_refused(local: Wopr) -> None:
    assert local("secrets", "set", "../mine", stdin=VALUE).exit_code == 2
    short = local("secrets", "set", "mine", stdin="short")

    assert short.exit_code == 2
    assert "at least 8 characters" in short.stderr

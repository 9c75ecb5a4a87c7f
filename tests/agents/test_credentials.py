from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail
from keyrings.alt.file import (  # type: ignore[import-untyped]  # the package carries no types
    PlaintextKeyring,
)

from wopr.agents.credentials import Credentials
from wopr.engine.outcome import NodeFailure
from wopr.security.credential_names import is_name, seal_context, variable_of
from wopr.security.encryption import Seal
from wopr.security.redact import Redactors
from wopr.store.port import SecretRow, Store

pytestmark = pytest.mark.anyio

VALUE = "correct-horse-battery"
SEAL = Seal(b"k" * 32)


def sealed(tenant: str, name: str, value: str = VALUE, *audience: str) -> SecretRow:
    body = SEAL.seal(value.encode(), nonce=b"n" * 12, context=seal_context(tenant, name))
    return SecretRow(name=name, sealed=body, audience=audience, updated_at=1)


async def code_of(credentials: Credentials, tenant: str, ref: str, **to: str) -> str:
    with pytest.raises(NodeFailure) as failure:
        await credentials.resolve(tenant, ref, **to)
    assert VALUE not in str(failure.value)
    return failure.value.error.code


async def test_a_value_is_redacted_from_the_moment_it_is_read(store: Store) -> None:
    redactors = Redactors()
    credentials = Credentials(store, SEAL, redactors, environment={})
    await store.put_secret("acme", sealed("acme", "mine"))

    assert await credentials.resolve("acme", "mine") == VALUE

    assert redactors.text("acme", f"it is {VALUE}") == "it is [REDACTED:mine]"


async def test_a_value_is_not_redacted_for_another_tenant_and_redacted_without_its_name_in_logs(
    store: Store,
) -> None:
    redactors = Redactors()
    credentials = Credentials(store, SEAL, redactors, environment={})
    await store.put_secret("acme", sealed("acme", "mine"))

    await credentials.resolve("acme", "mine")

    assert redactors.text("globex", f"it is {VALUE}") == f"it is {VALUE}"
    assert redactors.process.text(f"it is {VALUE}") == "it is [REDACTED]"


async def test_a_value_in_the_environment_is_a_secret_of_its_tenant_from_the_start(
    store: Store,
) -> None:
    redactors = Redactors()
    variable = variable_of("acme & co", "my_key.1")

    Credentials(store, SEAL, redactors, environment={variable: VALUE})

    assert redactors.text("acme & co", VALUE) == "[REDACTED:my_key.1]"
    assert redactors.text("globex", VALUE) == VALUE


async def test_a_variable_without_a_tenant_belongs_to_the_operator(store: Store) -> None:
    redactors = Redactors()

    Credentials(store, SEAL, redactors, environment={"WOPR_SECRET_odd": VALUE})

    assert redactors.text("acme", VALUE) == redactors.text("globex", VALUE) == "[REDACTED]"


async def test_every_use_is_recorded_by_name(store: Store) -> None:
    noted: list[tuple[str, str]] = []

    async def note(tenant: str, ref: str) -> None:
        noted.append((tenant, ref))

    environment = {variable_of("acme", "mine"): VALUE}
    credentials = Credentials(store, SEAL, Redactors(), environment=environment, on_use=note)

    await credentials.resolve("acme", "env:mine")

    assert noted == [("acme", "env:mine")]


async def test_only_the_source_named_in_the_reference_is_queried(store: Store) -> None:
    environment = {variable_of("acme", "mine"): VALUE}
    credentials = Credentials(store, SEAL, Redactors(), environment=environment)

    assert await credentials.resolve("acme", "mine") == VALUE
    assert await code_of(credentials, "acme", "store:mine") == "credential_not_found"


async def test_a_credential_moved_to_another_tenant_cannot_be_decrypted(store: Store) -> None:
    credentials = Credentials(store, SEAL, Redactors(), environment={})
    await store.put_secret("globex", sealed("acme", "mine"))

    assert await code_of(credentials, "globex", "mine") == "credential_unavailable"


async def test_a_value_too_short_to_be_redacted_is_not_returned(store: Store) -> None:
    environment = {variable_of("acme", "pin"): "1234567"}
    credentials = Credentials(store, SEAL, Redactors(), environment=environment)

    assert await code_of(credentials, "acme", "pin") == "credential_unavailable"


async def test_the_audience_is_enforced(store: Store) -> None:
    credentials = Credentials(store, SEAL, Redactors(), environment={})
    await store.put_secret("acme", sealed("acme", "any"))
    await store.put_secret("acme", sealed("acme", "narrow", VALUE, "openai", "api.example.com"))

    assert await credentials.resolve("acme", "any", provider="openai") == VALUE
    assert await credentials.resolve("acme", "narrow", provider="openai") == VALUE
    assert await credentials.resolve("acme", "narrow", host="api.example.com") == VALUE
    assert await code_of(credentials, "acme", "narrow", provider="local") == "credential_forbidden"
    assert await code_of(credentials, "acme", "any", host="evil.example") == "credential_forbidden"


async def test_a_file_that_cannot_be_read_is_unavailable(store: Store, tmp_path: Path) -> None:
    (tmp_path / "acme" / "mine").mkdir(parents=True)
    credentials = Credentials(store, SEAL, Redactors(), environment={}, directory=tmp_path)

    assert await code_of(credentials, "acme", "file:mine") == "credential_unavailable"
    assert await code_of(credentials, "..", "file:mine") == "credential_not_found"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "env:", "x" * 129, "a b", "a\x00"])
async def test_an_invalid_name_is_found_nowhere(store: Store, name: str) -> None:
    credentials = Credentials(store, SEAL, Redactors(), environment={}, directory=Path("/"))

    assert not is_name(name)
    assert await code_of(credentials, "acme", name) == "credential_not_found"


def test_no_two_credentials_share_a_variable() -> None:
    pairs = [("a", "b"), ("a-b", "c"), ("a_b", "c"), ("A", "b"), ("a", "b-c"), ("a__b", "c")]

    assert len({variable_of(*pair) for pair in pairs}) == len(pairs)


@pytest.fixture
def passwords(tmp_path: Path) -> Iterator[PlaintextKeyring]:
    """Store the keyring in a file instead of that of this machine."""
    before = keyring.get_keyring()
    kept = PlaintextKeyring()
    kept.file_path = str(tmp_path / "keyring")
    keyring.set_keyring(kept)
    yield kept
    keyring.set_keyring(before)


async def test_the_system_keyring_is_queried_by_tenant(
    store: Store, passwords: PlaintextKeyring
) -> None:
    passwords.set_password("wopr:acme", "mine", VALUE)
    credentials = Credentials(store, SEAL, Redactors(), environment={})

    assert await credentials.resolve("acme", "keyring:mine") == VALUE
    assert await code_of(credentials, "globex", "keyring:mine") == "credential_not_found"


@pytest.mark.usefixtures("passwords")
async def test_a_machine_without_a_keyring_reports_it_as_unavailable(store: Store) -> None:
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]  # it has no types
    credentials = Credentials(store, SEAL, Redactors(), environment={})

    assert await code_of(credentials, "acme", "keyring:mine") == "credential_unavailable"


async def test_without_its_package_the_keyring_is_unavailable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    credentials = Credentials(store, SEAL, Redactors(), environment={})

    assert await code_of(credentials, "acme", "keyring:mine") == "credential_not_found"

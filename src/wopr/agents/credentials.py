"""Credentials by reference: resolved for one tenant when they are used, and never logged.

A reference is a name. The operator sets the value encrypted in the store (`wopr secrets set`), in
the environment, in a file, or in the keyring of the operating system. Each lookup includes the
tenant, so that a name cannot reach another tenant's value.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from wopr.engine.outcome import NodeFailure
from wopr.security.credential_names import (
    SOURCES,
    VARIABLE_PREFIX,
    is_name,
    owner_of,
    parse_ref,
    seal_context,
    variable_of,
)
from wopr.security.encryption import Seal, SealBroken
from wopr.security.redact import MIN_SECRET, Redactors
from wopr.store.port import Secrets

OnUse = Callable[[str, str], Awaitable[None]]


class Credentials:
    """Resolves references. Each resolved value is redacted for its tenant from then on."""

    def __init__(
        self,
        store: Secrets,
        seal: Seal,
        redactors: Redactors,
        *,
        environment: Mapping[str, str],
        directory: Path | None = None,
        on_use: OnUse | None = None,
    ) -> None:
        self._store = store
        self._seal = seal
        self._redactors = redactors
        self._environment = environment
        self._directory = directory
        # Called at each use with the tenant and the reference.
        self._on_use = on_use
        for name, value in environment.items():
            owner = owner_of(name)
            if owner is not None:
                redactors.register(*owner, value)
            elif name.startswith(VARIABLE_PREFIX):
                redactors.register_operator(value)

    async def resolve(self, tenant: str, ref: str, *, provider: str = "", host: str = "") -> str:
        """Return the value of a tenant's credential.

        A credential with an audience is sent only to that audience. A `host` named by a workflow
        gets only a credential whose audience includes it: authors of workflows may use credentials
        but not read them. Raises `NodeFailure`, which never contains the value.
        """
        found = parse_ref(ref)
        if found is None:
            raise _failure("credential_not_found", f"{ref[:128]!r} is not a valid credential name")
        for source in SOURCES if found.source is None else (found.source,):
            if host and source != "store":
                continue
            value = await self._from(source, tenant, found.name, provider or host, bool(host))
            if value is not None:
                return await self._check_and_register(tenant, ref, value)
        raise _failure("credential_not_found", f"There is no credential {ref}.")

    async def _from(
        self, source: str, tenant: str, name: str, to: str, must_name: bool
    ) -> str | None:
        if source == "store":
            return await self._from_store(tenant, name, to, must_name)
        if source == "env":
            return self._environment.get(variable_of(tenant, name))
        if source == "file":
            return await self._from_file(tenant, name)
        return await anyio.to_thread.run_sync(_from_keyring, tenant, name)

    async def _from_store(self, tenant: str, name: str, to: str, must_name: bool) -> str | None:
        row = await self._store.secret(tenant, name)
        if row is None:
            return None
        is_restricted = must_name or bool(row.audience)
        if to and is_restricted and to not in row.audience:
            raise _failure(
                "credential_forbidden", f"The credential {name} may not be sent to {to}."
            )
        try:
            return self._seal.open(row.sealed, context=seal_context(tenant, name)).decode()
        except SealBroken as broken:
            message = f"The credential {name} was encrypted with another host key. Set it again."
            raise _failure("credential_unavailable", message) from broken

    async def _from_file(self, tenant: str, name: str) -> str | None:
        if self._directory is None or not is_name(tenant):
            return None
        file = anyio.Path(self._directory) / tenant / name
        try:
            return (await file.read_text()).strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as fault:
            message = f"The file of the credential {name} cannot be read."
            raise _failure("credential_unavailable", message) from fault

    async def _check_and_register(self, tenant: str, ref: str, value: str) -> str:
        if len(value) < MIN_SECRET:
            message = f"The credential {ref} is shorter than {MIN_SECRET} characters."
            raise _failure("credential_unavailable", message)
        self._redactors.register(tenant, ref, value)
        if self._on_use is not None:
            await self._on_use(tenant, ref)
        return value


def _from_keyring(tenant: str, name: str) -> str | None:
    """Read the operating system's keyring; None if the package `keyring` is not installed."""
    try:
        keyring: Any = importlib.import_module("keyring")
    except ImportError:
        return None
    try:
        value: str | None = keyring.get_password(f"wopr:{tenant}", name)
    except Exception as fault:  # every backend raises its own errors
        message = f"The keyring did not return the credential {name}."
        raise _failure("credential_unavailable", message) from fault
    return value


def _failure(code: str, message: str) -> NodeFailure:
    return NodeFailure(message, code=code, retryable=code == "credential_unavailable")

"""Credentials by reference: found at the moment of use, for one tenant, and never written down.

A reference is a name. Where its value lies is the operator's business: sealed in the store
(`wopr secrets set`), in the environment, in a file, or in the keyring of the operating system.
Each of these is looked up under the tenant, so that no name reaches another tenant's value.
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
    read_ref,
    seal_context,
    variable_of,
)
from wopr.security.redact import MIN_SECRET, Redactors
from wopr.security.seal import Seal, SealBroken
from wopr.store.port import Secrets

Noted = Callable[[str, str], Awaitable[None]]


class Credentials:
    """Finds the values of references, and has each one redacted from then on for its tenant."""

    def __init__(
        self,
        store: Secrets,
        seal: Seal,
        redactors: Redactors,
        *,
        environment: Mapping[str, str],
        directory: Path | None = None,
        noted: Noted | None = None,
    ) -> None:
        self._store = store
        self._seal = seal
        self._redactors = redactors
        self._environment = environment
        self._directory = directory
        # Told of every use: tenant and reference.
        self._noted = noted
        for name, value in environment.items():
            owner = owner_of(name)
            if owner is not None:
                redactors.register(*owner, value)
            elif name.startswith(VARIABLE_PREFIX):
                redactors.register_operator(value)

    async def resolve(self, tenant: str, ref: str, *, provider: str = "", host: str = "") -> str:
        """The value of a tenant's credential, for use at once.

        One that names whom it is for goes to nobody else. To a host that a workflow names goes
        only one that names that host: whoever writes workflows may use credentials, and not
        carry them off. Raises `NodeFailure`, which names the reference and never the value.
        """
        found = read_ref(ref)
        if found is None:
            raise _failure("credential_not_found", f"{ref[:128]!r} is no name of a credential")
        for source in SOURCES if found.source is None else (found.source,):
            if host and source != "store":
                continue
            value = await self._from(source, tenant, found.name, provider or host, bool(host))
            if value is not None:
                return await self._handed_out(tenant, ref, value)
        raise _failure("credential_not_found", f"there is no credential {ref}")

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
            raise _failure("credential_forbidden", f"the credential {name} is not for {to}")
        try:
            return self._seal.open(row.sealed, context=seal_context(tenant, name)).decode()
        except SealBroken as broken:
            message = f"the credential {name} was sealed under another host key"
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
            message = f"the file of the credential {name} cannot be read"
            raise _failure("credential_unavailable", message) from fault

    async def _handed_out(self, tenant: str, ref: str, value: str) -> str:
        if len(value) < MIN_SECRET:
            message = f"the credential {ref} is shorter than {MIN_SECRET} characters"
            raise _failure("credential_unavailable", message)
        self._redactors.register(tenant, ref, value)
        if self._noted is not None:
            await self._noted(tenant, ref)
        return value


def _from_keyring(tenant: str, name: str) -> str | None:
    """Ask the operating system's keyring, where the package for it is installed and works."""
    try:
        keyring: Any = importlib.import_module("keyring")
    except ImportError:
        return None
    try:
        value: str | None = keyring.get_password(f"wopr:{tenant}", name)
    except Exception as fault:  # every backend has errors of its own
        message = f"the keyring did not hand out the credential {name}"
        raise _failure("credential_unavailable", message) from fault
    return value


def _failure(code: str, message: str) -> NodeFailure:
    return NodeFailure(message, code=code, retryable=code == "credential_unavailable")

"""Names of credentials: what a reference looks like, and where each source keeps its value."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SOURCES: Final = ("store", "env", "file", "keyring")
VARIABLE_PREFIX: Final = "WOPR_SECRET_"
# The purpose that the key which seals credentials is derived for.
SEAL_PURPOSE: Final = "tenant-secret"
_REF: Final = re.compile(
    rf"(?:(?P<source>{'|'.join(SOURCES)}):)?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{{0,127}})"
)
_ODD: Final = re.compile(r"[^A-Za-z0-9]")
_BYTE: Final = re.compile(rb"_([0-9A-F]{2})")


class CredentialRef(NamedTuple):
    """A reference: a name, and the one source that it is meant for, if it says so."""

    name: str
    source: str | None


def read_ref(ref: str) -> CredentialRef | None:
    """Read a reference; None for what cannot be one."""
    found = _REF.fullmatch(ref)
    return None if found is None else CredentialRef(found["name"], found["source"])


def is_name(name: str) -> bool:
    """Tell whether a credential, or the folder of a tenant's, can have this name."""
    found = read_ref(name)
    return found is not None and found.source is None


def seal_context(tenant: str, name: str) -> bytes:
    """What a sealed credential is bound to: moved to another tenant or name it does not open."""
    return f"secret:{len(tenant)}:{tenant}:{name}".encode()


def variable_of(tenant: str, name: str) -> str:
    """The environment variable of a credential; no two credentials share one."""
    return f"{VARIABLE_PREFIX}{_spelled(tenant)}__{_spelled(name)}"


def owner_of(variable: str) -> tuple[str, str] | None:
    """The tenant and the name of the credential in a variable; None for one that holds none."""
    tenant, separator, name = variable.removeprefix(VARIABLE_PREFIX).partition("__")
    if not variable.startswith(VARIABLE_PREFIX) or not separator:
        return None
    found = (_read(tenant), _read(name))
    return found if variable_of(*found) == variable else None


def _read(spelled: str) -> str:
    """Undo `_spelled`; of what it did not write, anything may come out."""
    raw = _BYTE.sub(
        lambda found: bytes.fromhex(found[1].decode()), spelled.encode("utf-8", "replace")
    )
    return raw.decode("utf-8", "replace")


def _spelled(text: str) -> str:
    """Letters and digits as they are, every other byte as `_` and its two hexadecimal digits."""
    return _ODD.sub(lambda found: "".join(f"_{byte:02X}" for byte in found[0].encode()), text)

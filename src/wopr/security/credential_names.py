"""Names of credentials: the form of a reference, and where each source stores its value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from wopr.protocol.documents import Json, is_list, is_object
from wopr.security.shapes import holds_shape

SOURCES: Final = ("store", "env", "file", "keyring")
VARIABLE_PREFIX: Final = "WOPR_SECRET_"
# The purpose of the derived key that encrypts credentials.
SEAL_PURPOSE: Final = "tenant-secret"
_REF: Final = re.compile(
    rf"(?:(?P<source>{'|'.join(SOURCES)}):)?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{{0,127}})"
)
_NOT_ALPHANUMERIC: Final = re.compile(r"[^A-Za-z0-9]")
_BYTE: Final = re.compile(rb"_([0-9A-F]{2})")


class CredentialRef(NamedTuple):
    """A reference to a credential: a name, and optionally its source."""

    name: str
    source: str | None


def parse_ref(ref: str) -> CredentialRef | None:
    """Parse a reference; None if it is not one."""
    found = _REF.fullmatch(ref)
    return None if found is None else CredentialRef(found["name"], found["source"])


def is_name(name: str) -> bool:
    """Return whether a credential, or a tenant's folder of credentials, can have this name."""
    found = parse_ref(name)
    return found is not None and found.source is None


def seal_context(tenant: str, name: str) -> bytes:
    """Return the encryption context of a credential, which binds it to its tenant and name."""
    return f"secret:{len(tenant)}:{tenant}:{name}".encode()


def variable_of(tenant: str, name: str) -> str:
    """Return the environment variable of a credential. It is unique."""
    return f"{VARIABLE_PREFIX}{_escape(tenant)}__{_escape(name)}"


def owner_of(variable: str) -> tuple[str, str] | None:
    """Return tenant and name of the credential in a variable, or None."""
    tenant, separator, name = variable.removeprefix(VARIABLE_PREFIX).partition("__")
    if not variable.startswith(VARIABLE_PREFIX) or not separator:
        return None
    found = (_unescape(tenant), _unescape(name))
    return found if variable_of(*found) == variable else None


def _unescape(text: str) -> str:
    raw = _BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode("utf-8", "replace"))
    return raw.decode("utf-8", "replace")


def _escape(text: str) -> str:
    """Keep letters and digits, and write every other byte as `_` and two hexadecimal digits."""
    return _NOT_ALPHANUMERIC.sub(
        lambda found: "".join(f"_{byte:02X}" for byte in found[0].encode()), text
    )


# Members whose value is the name of a credential. The name may look like a credential.
REFERENCES: Final = frozenset({"credentialsRef", "credentialRef"})


def credential_paths(document: Json, path: str = "") -> Iterator[str]:
    """Yield the path of every credential in a document. A path never contains a credential."""
    if isinstance(document, str):
        if holds_shape(document):
            yield path
    elif is_object(document):
        for name, member in document.items():
            if holds_shape(name):
                yield path
            elif name not in REFERENCES:
                yield from _in_member(name, member, f"{path}.{name}" if path else name)
    elif is_list(document):
        for index, item in enumerate(document):
            yield from credential_paths(item, f"{path}.{index}" if path else str(index))


def _in_member(name: str, member: Json, place: str) -> Iterator[str]:
    if not isinstance(member, str):
        yield from credential_paths(member, place)
    # The name can show that the value is a secret, as in `x-api-key: abc123`.
    elif holds_shape(f"{name}: {member}"):
        yield place

"""The host secret, 32 random bytes that other keys are derived from, and files that hold such."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wopr.security.seal import KEY_BYTES

VARIABLE: Final = "WOPR_HOST_KEY"
FILE_NAME: Final = "host.key"
# What the key that signs tenants for a database server is derived for.
TENANT_KEY: Final = "postgres-tenant-token"


class UnusableHostKey(ValueError):
    """The host secret is there, but too short, unreadable or readable by others."""


def host_secret(data_dir: Path, environ: Mapping[str, str]) -> bytes:
    """Return the host secret from `WOPR_HOST_KEY`, or from the data directory.

    The first host to start in a data directory creates the file; of several that start at once
    all get the same secret.
    """
    given = environ.get(VARIABLE)
    if given:
        return _decoded(given)
    return private_file(data_dir / FILE_NAME)


def known_host_secret(data_dir: Path, environ: Mapping[str, str]) -> bytes | None:
    """Return the host secret like `host_secret`, but None where it would have to be created."""
    if not environ.get(VARIABLE) and not (data_dir / FILE_NAME).exists():
        return None
    return host_secret(data_dir, environ)


def private_file(path: Path) -> bytes:
    """Return the 32 random bytes of a file that its owner alone can read; make it if need be."""
    if not path.exists():
        _create(path)
    return _read(path)


def _decoded(text: str) -> bytes:
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise UnusableHostKey(f"{VARIABLE} is not base64") from None
    if len(secret) < KEY_BYTES:
        raise UnusableHostKey(f"{VARIABLE} holds {len(secret)} bytes; it needs {KEY_BYTES}")
    return secret


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_private(draft, secrets.token_bytes(KEY_BYTES))
        # A link appears whole or not at all, and never replaces what another process made.
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _write_private(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        secret = file.read()
    if mode & 0o077:
        raise UnusableHostKey(f"{path} can be read by others; run chmod 600 on it")
    if len(secret) != KEY_BYTES:
        raise UnusableHostKey(f"{path} holds {len(secret)} bytes; it needs {KEY_BYTES}")
    return secret

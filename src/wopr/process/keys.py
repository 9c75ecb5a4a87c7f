"""The host key, from which other keys are derived, and the keys of stored content."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import shlex
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from wopr.security.encryption import KEY_BYTES, Cipher, UnusableKeys, parse_keys

HOST_KEY_VARIABLE: Final = "WOPR_HOST_KEY"
HOST_KEY_FILE: Final = "host.key"
# The purpose of the derived key that signs tenant tokens for a database server.
TENANT_KEY: Final = "postgres-tenant-token"

KEY_VARIABLE: Final = "WOPR_ENCRYPTION_KEY"
FILE_VARIABLE: Final = "WOPR_ENCRYPTION_KEY_FILE"
COMMAND_VARIABLE: Final = "WOPR_ENCRYPTION_KEY_COMMAND"

_COMMAND_SECONDS: Final = 30.0


class UnusableHostKey(ValueError):
    """The host key exists, but is too short, unreadable or readable by others."""


def load_host_key(data_dir: Path, environ: Mapping[str, str]) -> bytes:
    """Return the host key from `WOPR_HOST_KEY`, or from the data directory.

    The first host that starts in a data directory creates the file. Hosts that start at the same
    time get the same key.
    """
    given = environ.get(HOST_KEY_VARIABLE)
    if given:
        return _decode_host_key(given)
    return load_private_file(data_dir / HOST_KEY_FILE)


def find_host_key(data_dir: Path, environ: Mapping[str, str]) -> bytes | None:
    """Return the host key, or None when it does not exist yet."""
    if not environ.get(HOST_KEY_VARIABLE) and not (data_dir / HOST_KEY_FILE).exists():
        return None
    return load_host_key(data_dir, environ)


def load_private_file(path: Path) -> bytes:
    """Return the 32 random bytes of a file that only its owner can read. Create it if missing."""
    if not path.exists():
        _create_private_file(path)
    return _read_private(path)


def _decode_host_key(text: str) -> bytes:
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise UnusableHostKey(f"{HOST_KEY_VARIABLE} is not base64") from None
    if len(secret) < KEY_BYTES:
        raise UnusableHostKey(f"{HOST_KEY_VARIABLE} has {len(secret)} bytes; it needs {KEY_BYTES}")
    return secret


def _create_private_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_private(draft, secrets.token_bytes(KEY_BYTES))
        # A link is atomic and never replaces the file of another process.
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def _write_private(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Wait until the names of the files in a directory are on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_private(path: Path) -> bytes:
    with path.open("rb") as file:
        is_private = _is_private(file.fileno())
        secret = file.read()
    if not is_private:
        raise UnusableHostKey(f"{path} can be read by others; run chmod 600 on it")
    if len(secret) != KEY_BYTES:
        raise UnusableHostKey(f"{path} has {len(secret)} bytes; it needs {KEY_BYTES}")
    return secret


def _is_private(descriptor: int) -> bool:
    """Return whether only the owner of an open file can read it."""
    return not stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077


def content_cipher(environ: Mapping[str, str]) -> Cipher | None:
    """Return the cipher for stored content; None when encryption is off.

    The keys come from the environment, a file or a command. Raises `UnusableKeys`; the message
    names the variable and never contains a key.
    """
    given = [name for name in (KEY_VARIABLE, FILE_VARIABLE, COMMAND_VARIABLE) if environ.get(name)]
    if not given:
        return None
    if len(given) > 1:
        raise UnusableKeys(f"set only one of {', '.join(given)}")
    [name] = given
    readers: dict[str, Callable[[str], str]] = {
        KEY_VARIABLE: str,
        FILE_VARIABLE: _read_key_file,
        COMMAND_VARIABLE: _run_key_command,
    }
    text = readers[name](environ[name])
    try:
        return Cipher(parse_keys(text), secrets.token_bytes)
    except UnusableKeys as fault:
        raise UnusableKeys(
            f"{name}: {fault}; expected keys of 32 bytes as base64, first the key to encrypt with"
        ) from None


def _read_key_file(name: str) -> str:
    path = Path(name)
    try:
        with path.open() as file:
            is_private = _is_private(file.fileno())
            text = file.read()
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise UnusableKeys(f"{FILE_VARIABLE}: {name} cannot be read: {reason}") from None
    if not is_private:
        raise UnusableKeys(f"{FILE_VARIABLE}: {name} can be read by others; run chmod 600 on it")
    return text


def _run_key_command(command: str) -> str:
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, ValueError) as fault:
        raise UnusableKeys(f"{COMMAND_VARIABLE} cannot be run: {fault}") from None
    except subprocess.TimeoutExpired:
        raise UnusableKeys(
            f"{COMMAND_VARIABLE} did not end within {_COMMAND_SECONDS:.0f} seconds"
        ) from None
    if done.returncode:
        # The output is not repeated, because it may contain a key.
        raise UnusableKeys(f"{COMMAND_VARIABLE} ended with exit code {done.returncode}")
    return done.stdout.decode("ascii", "replace")

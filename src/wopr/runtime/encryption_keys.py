"""Where the keys that encrypt stored content come from: the environment, a file or a command."""

from __future__ import annotations

import secrets
import shlex
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from wopr.security.encryption import Cipher, UnusableKeys, parse_keys

VARIABLE: Final = "WOPR_ENCRYPTION_KEY"
FILE_VARIABLE: Final = "WOPR_ENCRYPTION_KEY_FILE"
COMMAND_VARIABLE: Final = "WOPR_ENCRYPTION_KEY_COMMAND"

_COMMAND_SECONDS: Final = 30.0


def content_cipher(environ: Mapping[str, str]) -> Cipher | None:
    """Return what encrypts stored content with the configured keys; None when encryption is off.

    Raises `UnusableKeys`, which names the variable and never a key.
    """
    given = [name for name in (VARIABLE, FILE_VARIABLE, COMMAND_VARIABLE) if environ.get(name)]
    if not given:
        return None
    if len(given) > 1:
        raise UnusableKeys(f"set only one of {', '.join(given)}")
    [name] = given
    given_by: dict[str, Callable[[str], str]] = {
        VARIABLE: str,
        FILE_VARIABLE: _file,
        COMMAND_VARIABLE: _output,
    }
    text = given_by[name](environ[name])
    try:
        return Cipher(parse_keys(text), secrets.token_bytes)
    except UnusableKeys as fault:
        raise UnusableKeys(
            f"{name}: {fault}; expected keys of 32 bytes as base64, the one to write with first"
        ) from None


def _file(name: str) -> str:
    path = Path(name)
    try:
        with path.open() as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            text = file.read()
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise UnusableKeys(f"{FILE_VARIABLE}: {name} cannot be read: {reason}") from None
    if mode & 0o077:
        raise UnusableKeys(f"{FILE_VARIABLE}: {name} can be read by others; run chmod 600 on it")
    return text


def _output(command: str) -> str:
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
        # What the command printed is not repeated: it may hold a key.
        raise UnusableKeys(f"{COMMAND_VARIABLE} ended with exit code {done.returncode}")
    return done.stdout.decode("ascii", "replace")

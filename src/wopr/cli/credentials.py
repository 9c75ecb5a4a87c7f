"""Decide which server to speak to, and with which key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode
from wopr.cli.options import Target
from wopr.cli.paths import credentials_path
from wopr.protocol.documents import Document

DEFAULT_URL: Final = "http://127.0.0.1:8642"


class Credentials(Document, frozen=True, kw_only=True):
    """What `wopr serve` leaves for this machine's user on its first start."""

    url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class Server:
    """A server's URL without a trailing slash, and the key for it."""

    url: str
    api_key: str | None


def find_server(target: Target) -> Server:
    """Complete what the command line named with the credentials file.

    The file's key is for the file's server: it is never sent to another URL.
    """
    noted = read_credentials()
    url = _clean_url(target.url or (noted.url if noted else DEFAULT_URL))
    if target.api_key is not None and target.api_key.strip():
        return Server(url, _clean_key(target.api_key.strip()))
    if noted is not None and _clean_url(noted.url) == url:
        return Server(url, _clean_key(noted.api_key))
    return Server(url, None)


def read_credentials() -> Credentials | None:
    """Read the credentials file; None when there is none."""
    path = credentials_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise CliError(
            f"cannot read {path}: {fault.strerror}",
            ExitCode.USAGE,
            hint="run as the user who ran `wopr serve`, or set WOPR_URL and WOPR_API_KEY",
        ) from None
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise CliError(
            f"{path} is not a credentials file: {fault}",
            ExitCode.USAGE,
            hint="remove it, or set WOPR_URL and WOPR_API_KEY",
        ) from None


def _clean_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fine = False
    if not is_fine:
        raise CliError(f"not a URL such as {DEFAULT_URL}: {url}", ExitCode.USAGE)
    return url.rstrip("/")


def _clean_key(key: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise CliError("the API key holds characters that no key has", ExitCode.USAGE)
    return key

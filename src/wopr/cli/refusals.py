"""What a server said no with, as an error of the command line."""

from __future__ import annotations

from typing import Final

import httpx
import msgspec

from wopr.cli.credentials import Server
from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode, exit_code_of_status
from wopr.protocol.errors import ErrorEnvelope

_TOO_MANY: Final = 429
# What no further attempt can mend, although it looks like a failure on the way.
_LASTING: Final = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL)


def refusal(response: httpx.Response, server: Server) -> CliError:
    """What a response that is no success says."""
    exit_code = exit_code_of_status(response.status_code)
    is_transient = response.status_code == _TOO_MANY or response.status_code >= 500
    retry_after = _seconds(response.headers.get("retry-after"))
    try:
        envelope = msgspec.json.decode(response.content, type=ErrorEnvelope)
    except (msgspec.DecodeError, UnicodeError):
        answered = f"{response.status_code} {response.reason_phrase}".strip()
        return CliError(
            f"{server.url} answered {answered}, and not as an OpenWOP host does",
            exit_code,
            code="bad_answer",
            hint="is this the address of a WOPR server? name it with --url or WOPR_URL",
            is_transient=is_transient,
            retry_after=retry_after,
        )
    return CliError(
        envelope.message,
        exit_code,
        code=envelope.error,
        hint=_hint(exit_code, server),
        details=envelope.details,
        is_transient=is_transient,
        retry_after=retry_after,
    )


def _seconds(header: str | None) -> float | None:
    """The seconds of a `Retry-After`; the form with a date counts as none."""
    return float(header) if header is not None and header.isdecimal() else None


def _hint(exit_code: ExitCode, server: Server) -> str | None:
    if exit_code is not ExitCode.DENIED:
        return None
    if server.api_key is None:
        return "give a key with WOPR_API_KEY or --api-key; `wopr keys create` makes one"
    return "the key is not valid here or lacks the scope; `wopr keys list` shows what exists"


def unreachable(server: Server, fault: Exception) -> CliError:
    """A server that gave no answer at all."""
    return CliError(
        f"cannot reach {server.url}: {str(fault) or type(fault).__name__}",
        ExitCode.UNAVAILABLE,
        code="server_unreachable",
        hint="start it with `wopr serve`, or name another with --url or WOPR_URL",
        is_transient=not isinstance(fault, _LASTING),
    )

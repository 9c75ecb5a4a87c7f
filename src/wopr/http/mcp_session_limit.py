"""How many sessions one key may hold with a host: none can take all that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from wopr.http.answers import error_answer
from wopr.http.asgi import ASGIApp, Message, Receive, Scope, Send
from wopr.http.endpoint import send_answer
from wopr.protocol.errors import RateLimited
from wopr.security.keys import Principal

MOST_SESSIONS_OF_ONE: Final = 50
_RETRY_SECONDS: Final = 60
_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"


@dataclass(slots=True, eq=False)
class _Held:
    """A session; one that is being opened has no id yet."""

    session_id: str | None = None
    requests: int = 0
    used_at: float = 0.0


class SessionLimit:
    """Passes requests on, and refuses those that would open one session too many for their key.

    What serves ends a session that was not used for `idle_seconds`, and does not say so.
    """

    def __init__(self, serve: ASGIApp, *, idle_seconds: float, clock: Callable[[], float]) -> None:
        self._serve = serve
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._held: dict[tuple[str, str], list[_Held]] = {}

    async def serve(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        held = self._held_by(principal)
        session_id = _header(scope["headers"], _SESSION)
        session = next(
            (each for each in held if session_id and each.session_id == session_id), None
        )
        is_opening = session_id is None and _has_session(_header(scope["headers"], _VERSION))
        if is_opening and len(held) >= MOST_SESSIONS_OF_ONE:
            message = f"this key holds {MOST_SESSIONS_OF_ONE} MCP sessions: end one of them first"
            refusal = RateLimited(message, retry_after=_RETRY_SECONDS)
            await send_answer(send, error_answer(refusal))
            return
        if is_opening:
            session = _Held()
            held.append(session)
        if session is None:
            # None that is known, or none needed: what serves can tell.
            await self._serve(scope, receive, send)
        elif not await self._use(session, scope, receive, send) and session in held:
            held.remove(session)

    def _held_by(self, principal: Principal) -> list[_Held]:
        """The sessions of a key that have not ended by themselves."""
        held = self._held.setdefault((principal.tenant, principal.key_id), [])
        earliest = self._clock() - self._idle_seconds
        # One that could not be opened has no id, and nobody who uses it.
        held[:] = [
            each for each in held if each.requests or (each.session_id and each.used_at > earliest)
        ]
        return held

    async def _use(self, session: _Held, scope: Scope, receive: Receive, send: Send) -> bool:
        """Serve a request of a session; False when there is no such session afterwards."""
        answer = _Heard(send, session)
        session.requests += 1
        try:
            await self._serve(scope, receive, answer)
        finally:
            session.requests -= 1
            session.used_at = self._clock()
        is_ended = scope["method"] == "DELETE" and answer.status < 300
        return answer.status != 404 and not is_ended


class _Heard:
    """What goes to the client, and what it says of the session."""

    def __init__(self, send: Send, session: _Held) -> None:
        self._send = send
        self._session = session
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Send, once it is known which session was opened."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = _header(message["headers"], _SESSION)
            if told is not None and self.status < 400:
                self._session.session_id = told
        await self._send(message)


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)


def _has_session(version: str | None) -> bool:
    """Whether a client of this version keeps a session; without one it is of an older version."""
    return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS

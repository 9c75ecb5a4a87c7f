"""Sessions in encrypted cookies, and the CSRF tokens of forms.

The cookie contains the hash of the API key, encrypted with a key of the host. The host stores
nothing for an open session, so the session survives a restart. Each request looks up the API key,
so a session ends when its key expires or is revoked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from wopr.protocol.documents import Document
from wopr.protocol.errors import Unauthenticated
from wopr.security.api_keys import Principal
from wopr.security.encryption import NONCE_BYTES, Seal, SealBroken, derive
from wopr.services.api_keys import Keyring
from wopr.store.port.credentials import EndedSessions

LIFETIME_MS: Final = 12 * 3_600_000
# A new name invalidates all cookies that were encrypted with the old one.
_CONTEXT: Final = b"console-session-2"


class ConsoleSession(Document, frozen=True, kw_only=True):
    """The content of the cookie."""

    session_id: str
    key_hash: bytes
    expires_at: int

    @property
    def session_hash(self) -> bytes:
        """The key of the record of a signed-out session."""
        return hashlib.sha256(b"console-session:" + self.session_id.encode()).digest()


class ConsoleSessions:
    """Begins, reads and ends the sessions of one host."""

    def __init__(
        self, key: bytes, keyring: Keyring, ended: EndedSessions, now: Callable[[], int]
    ) -> None:
        self._seal = Seal(key)
        self._form_key = derive(key, "console-form")
        self._keyring = keyring
        self._ended = ended
        self._now = now

    def begin(self, key_hash: bytes) -> str:
        """Begin a session for a key, and return the value of the cookie."""
        session = ConsoleSession(
            session_id=secrets.token_urlsafe(24),
            key_hash=key_hash,
            expires_at=self._now() + LIFETIME_MS,
        )
        sealed = self._seal.seal(
            msgspec.json.encode(session), nonce=secrets.token_bytes(NONCE_BYTES), context=_CONTEXT
        )
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def read(self, cookie: str) -> ConsoleSession:
        """Decrypt a cookie. Raises `Unauthenticated` if this host did not encrypt it."""
        try:
            sealed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
            opened = self._seal.open(sealed, context=_CONTEXT)
            return msgspec.json.decode(opened, type=ConsoleSession)
        except (ValueError, binascii.Error, SealBroken, msgspec.MsgspecError):
            raise Unauthenticated("The session cookie is not valid.") from None

    async def principal(self, session: ConsoleSession) -> Principal:
        """Return the session's principal. Raises `Unauthenticated` if the session has ended."""
        if session.expires_at <= self._now():
            raise Unauthenticated("The session has expired.")
        principal = await self._keyring.principal_of_hash(session.key_hash)
        if await self._ended.is_session_ended(principal.tenant, session.session_hash):
            raise Unauthenticated("The session was signed out.")
        return principal

    async def end(self, session: ConsoleSession, tenant: str) -> None:
        """End a session, for every process of the host and across restarts."""
        await self._ended.end_session(
            tenant, session.session_hash, expires_at=session.expires_at, now=self._now()
        )

    def form_token(self, subject: str) -> str:
        """Return the CSRF token for the forms of a session or visitor."""
        return hmac.new(self._form_key, subject.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, subject: str, given: str) -> bool:
        """Return whether this is the CSRF token of the session or visitor."""
        return hmac.compare_digest(self.form_token(subject).encode(), given.encode())

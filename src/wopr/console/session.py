"""Sessions: a sealed cookie that stands for an API key, and the tokens that forms carry.

The cookie holds the hash of the key, encrypted under a key of the host's own. Nothing is kept for
a session that is open, so it survives a restart; the key itself is looked up at each request, so
that a key which is revoked or expires takes its sessions along.
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
from wopr.runtime.keyring import Keyring
from wopr.security.keys import Principal
from wopr.security.seal import NONCE_BYTES, Seal, SealBroken, derive
from wopr.store.port import Answers, RememberedAnswer

LIFETIME_MS: Final = 12 * 3_600_000
_CONTEXT: Final = b"console-session"


class Session(Document, frozen=True, kw_only=True):
    """What the cookie says, once it is opened."""

    session_id: str
    key_hash: bytes
    expires_at: int

    @property
    def mark(self) -> bytes:
        """The name under which it is remembered that this session was ended."""
        return hashlib.sha256(b"console-session:" + self.session_id.encode()).digest()


class Sessions:
    """Begins, reads and ends the sessions of one host."""

    def __init__(
        self, key: bytes, keyring: Keyring, answers: Answers, now: Callable[[], int]
    ) -> None:
        self._seal = Seal(key)
        self._form_key = derive(key, "console-form")
        self._keyring = keyring
        self._answers = answers
        self._now = now

    def begin(self, key_hash: bytes) -> str:
        """Begin a session for the holder of a key, and return the cookie's value."""
        session = Session(
            session_id=secrets.token_urlsafe(24),
            key_hash=key_hash,
            expires_at=self._now() + LIFETIME_MS,
        )
        sealed = self._seal.seal(
            msgspec.json.encode(session), nonce=secrets.token_bytes(NONCE_BYTES), context=_CONTEXT
        )
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def read(self, cookie: str) -> Session:
        """Open a cookie. Raises `Unauthenticated` for one that this host did not seal."""
        try:
            sealed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
            opened = self._seal.open(sealed, context=_CONTEXT)
            return msgspec.json.decode(opened, type=Session)
        except (ValueError, binascii.Error, SealBroken, msgspec.MsgspecError):
            raise Unauthenticated("this is no session of this host") from None

    async def principal(self, session: Session) -> Principal:
        """Who the session speaks for now. Raises `Unauthenticated` when it is over."""
        if session.expires_at <= self._now():
            raise Unauthenticated("the session has expired")
        principal = await self._keyring.holder(session.key_hash)
        if await self._answers.answer(principal.tenant, session.mark) is not None:
            raise Unauthenticated("the session was signed out")
        return principal

    async def end(self, session: Session, tenant: str) -> None:
        """End a session for good, on every process of the host and across its restarts.

        It is kept with the answers to requests, which are kept for longer than a session lasts.
        """
        await self._answers.remember(
            tenant,
            RememberedAnswer(
                key_hash=session.mark,
                request_digest=b"",
                status=303,
                body=b"",
                created_at=self._now(),
            ),
        )

    def form_token(self, subject: str) -> str:
        """What a form of this session or of this visitor must carry."""
        return hmac.new(self._form_key, subject.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, subject: str, given: str) -> bool:
        """Tell whether a form carries what it must."""
        return hmac.compare_digest(self.form_token(subject).encode(), given.encode())

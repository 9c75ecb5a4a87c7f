"""The way of a person's request: the same as any other, but for the cookie and the error pages."""

from __future__ import annotations

from collections.abc import Mapping

from wopr.console.desk import Desk
from wopr.console.error_pages import error_page
from wopr.console.form import SMALL_FORM_BYTES
from wopr.console.render import redacted
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.endpoint import Endpoint
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.http.streams import StreamLimits
from wopr.protocol.errors import Unauthenticated, WoprError
from wopr.security.keys import Principal


class PageEndpoint(Endpoint):
    """One path of the console with all its methods."""

    def __init__(
        self, desk: Desk, operations: Mapping[str, Operation], *, has_large_form: bool = False
    ) -> None:
        super().__init__(desk.shared, operations)
        self._desk = desk
        self._has_large_form = has_large_form

    async def authenticate(self, exchange: Exchange) -> Principal:
        """Find who is signed in; a form must come from a page of the same session."""
        visit = Visit(self._desk, exchange)
        principal = await self._desk.sessions(exchange.host).principal(visit.session)
        if exchange.scope["method"] != "GET":
            # The body of the form counts for the tenant from its first byte.
            exchange.principal = principal
            if not self._has_large_form:
                exchange.max_body_bytes = min(exchange.max_body_bytes, SMALL_FORM_BYTES)
            await visit.check_form()
        return principal

    async def find_caller(self, exchange: Exchange) -> Principal:
        """Authenticate a request; without a valid session it counts as a request without a key.

        It is no failed authentication: visitors who have not signed in yet, or whose sessions have
        expired, are sent to the sign-in page. That page counts wrong keys.
        """
        try:
            return await self.authenticate(exchange)
        except WoprError:
            self._shared.failed_auth.spend_open(exchange.client_address)
            raise

    @property
    def streams(self) -> StreamLimits:
        """What counts the live pages."""
        return self._shared.console_streams

    def credential(self, exchange: Exchange) -> str:
        """The session: a live page ends when it is signed out, or with its key."""
        return Visit(self._desk, exchange).session.session_id

    async def refuse(self, exchange: Exchange, error: WoprError) -> Answer:
        """Say it as a page."""
        return await redacted(error_page(Visit(self._desk, exchange), error), exchange.redactor)

    async def note_denied(self, exchange: Exchange, operation: Operation, error: WoprError) -> None:
        """Put a refusal on record; somebody who has yet to sign in was refused nothing."""
        if not isinstance(error, Unauthenticated):
            await super().note_denied(exchange, operation, error)

"""The way of a person's request: the same as any other, but for the cookie and the error pages."""

from __future__ import annotations

from collections.abc import Mapping

from wopr.console.desk import Desk
from wopr.console.error_pages import error_page
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.endpoint import Endpoint
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.protocol.errors import Unauthenticated, WoprError
from wopr.security.keys import Principal


class PageEndpoint(Endpoint):
    """One path of the console with all its methods."""

    def __init__(self, desk: Desk, operations: Mapping[str, Operation]) -> None:
        super().__init__(desk.shared, operations)
        self._desk = desk

    async def authenticate(self, exchange: Exchange) -> Principal:
        """Find who is signed in; a form must come from a page of the same session."""
        visit = Visit(self._desk, exchange)
        principal = await self._desk.sessions(exchange.host).principal(visit.session)
        if exchange.scope["method"] != "GET":
            await visit.check_form()
        return principal

    async def refuse(self, exchange: Exchange, error: WoprError) -> Answer:
        """Say it as a page."""
        return error_page(Visit(self._desk, exchange), error)

    async def note_denied(self, exchange: Exchange, operation: Operation, error: WoprError) -> None:
        """Put a refusal on record; somebody who has yet to sign in was refused nothing."""
        if not isinstance(error, Unauthenticated):
            await super().note_denied(exchange, operation, error)

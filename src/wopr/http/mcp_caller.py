"""What an MCP client does here, done by the operations of the wire: the same key, scopes and limits.

Every step of a call is authenticated anew by the key that the client presented, so a key that was
revoked meanwhile ends the call, and nothing is allowed here that the API would not allow.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from wopr.http import events, interrupts, runs, workflows
from wopr.http.answers import Stream
from wopr.http.asgi import Message, Scope
from wopr.http.endpoint import Endpoint, Shared, authenticate
from wopr.http.exchange import Exchange
from wopr.http.runs import TRANSPORT
from wopr.http.streams import OpenStream
from wopr.protocol.documents import JsonObject, encode
from wopr.protocol.errors import ErrorEnvelope, Unavailable, WoprError
from wopr.runtime.host import Host
from wopr.security.keys import Principal
from wopr.security.redact import Redactor

T = TypeVar("T")

_OPERATIONS: Final = {
    operation.name: operation
    for module in (runs, events, interrupts, workflows)
    for operation in module.OPERATIONS
}


class Told(Exception):
    """A refusal of the wire, as its envelope says it."""

    def __init__(self, envelope: ErrorEnvelope) -> None:
        super().__init__(f"{envelope.error}: {envelope.message}")
        self.envelope = envelope


class Caller(Endpoint):
    """Whoever made one MCP request, with the API at hand."""

    def __init__(self, shared: Shared, scope: Scope) -> None:
        super().__init__(shared, {})
        self._outer = scope

    @property
    def host(self) -> Host:
        """The host that is served. Raises `Unavailable` when it stops."""
        if self._shared.host is None or self._shared.stopping.is_set():
            raise Unavailable("the host is stopping")
        return self._shared.host

    async def redactor(self) -> Redactor:
        """What keeps secrets out of answers to this caller; shapes alone while there is no host."""
        host = self._shared.host
        if host is None:
            return Redactor()
        try:
            tenant = (await self.principal()).tenant
        except WoprError:
            tenant = ""
        return host.advancer.journal.redactors.of(tenant)

    @contextmanager
    def streaming(self, exchange: Exchange) -> Generator[OpenStream, None, None]:
        """Count no stream: the MCP request that waits is counted as one already."""
        exchange.leave()
        yield OpenStream(exchange.caller, self.credential(exchange), self.principal)

    async def principal(self) -> Principal:
        """Who calls, as the key stands now."""
        return await authenticate(self._exchange("GET", {}, {}))

    async def call(
        self,
        name: str,
        kind: type[T],
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Carry out an operation by its name; raises `Told` with what the wire answers instead."""
        operation = _OPERATIONS[name]
        exchange = self._exchange(operation.method, query or {}, headers or {})
        exchange.path = dict(path or {})
        exchange.give_back(b"" if body is None else encode(body))
        try:
            answer = await self._answer(exchange, operation)
        finally:
            exchange.close()
        if isinstance(answer, Stream):
            raise TypeError(f"{name} answers with a stream")
        if answer.status >= 400:
            raise Told(msgspec.json.decode(answer.body, type=ErrorEnvelope))
        return msgspec.json.decode(answer.body, type=kind)

    def _exchange(
        self, method: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Exchange:
        kept = [pair for pair in self._outer["headers"] if pair[0] == b"authorization"]
        given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope: JsonObject = {
            "type": "http",
            "method": method,
            "path": self._outer["path"],
            "query_string": urlencode(query).encode(),
            "headers": [*kept, *given],
            TRANSPORT: "mcp",
        }
        return Exchange(self.host, scope, _nothing_more, self._shared.throttle)


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}

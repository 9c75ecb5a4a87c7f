"""Tools that a model may call: what one is, and what its call gets to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

import httpx

from wopr.protocol.documents import Json, JsonObject

Transport = Literal["mcp", "http", "native"]
# The scope of tools that are functions of an app, in the names that allowlists use.
LOCAL: Final = "local"
# In characters. It may be somebody else's text, a model reads it, and the record keeps it.
LONGEST_FAULT: Final = 4000


class SecretOf(Protocol):
    """Resolves a credential at the moment of its use."""

    async def __call__(self, ref: str, *, host: str = "", provider: str = "") -> str:
        """The value of a credential; raises `ToolFault` when it cannot be had.

        A `host` is one that a workflow names, a `provider` whom the operator sends it to.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """On whose behalf a tool is called. The tenant is the run's own, whatever a model says.

    `invocation_id` is the same for every attempt and after every restart: a service that knows
    idempotency keys does its work once.
    """

    tenant: str
    run_id: str
    node_id: str
    agent_id: str
    call_id: str
    invocation_id: str
    # Guarded: it dials no private address.
    http: httpx.AsyncClient
    # The value of one of the tenant's own credentials, by its name; with a host, only if it is
    # meant for that host.
    secret: SecretOf
    # The trace that the run belongs to, for a call that can carry it on; empty where there is none.
    traceparent: str = ""


class ToolFault(Exception):
    """A call that did not work; the model is told the message and may go on without it.

    A message that is too long is cut.
    """

    def __init__(self, message: str, *, code: str = "tool_error") -> None:
        length = len(message)
        if length > LONGEST_FAULT:
            message = f"{message[:LONGEST_FAULT]}… (cut: {length} characters)"
        super().__init__(message)
        self.code = code


class Tool(Protocol):
    """Something that a model may call.

    The name is what allowlists and the log call it, such as `acme:search_orders`. `parameters` is
    a JSON Schema of one object; arguments are checked against it before the call.
    """

    @property
    def name(self) -> str:
        """What allowlists and the log call it."""
        ...

    @property
    def description(self) -> str:
        """What the model is told of it."""
        ...

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of the arguments, which are one object."""
        ...

    @property
    def transport(self) -> Transport:
        """How the call leaves the host."""
        ...

    @property
    def required_scopes(self) -> tuple[str, ...]:
        """What the key that started the run must be allowed."""
        ...

    async def call(self, arguments: JsonObject, context: ToolContext) -> Json:
        """Do the work and return JSON; raise `ToolFault` for what the model should know."""
        ...

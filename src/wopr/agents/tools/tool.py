"""The contract of a tool that a model may call, and the context of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

import httpx

from wopr.protocol.documents import Json, JsonObject

Transport = Literal["mcp", "http", "native"]
# The scope of tools that are functions of an app, in allowlists.
LOCAL: Final = "local"
# The limit of a message in characters. It may come from a third party, and is logged.
MAX_MESSAGE: Final = 4000


class SecretResolver(Protocol):
    """Resolves a credential at the moment of its use."""

    async def __call__(self, ref: str, *, host: str = "", provider: str = "") -> str:
        """Return the value of a credential. Raises `ToolFault` if it cannot be resolved.

        `host` is a host that a workflow names. `provider` is a receiver that the operator names.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of a tool call. A parameter of this type in a `@tool` function gets it.

    Attributes:
        tenant: The tenant of the run. A model cannot change it.
        run_id: The run.
        node_id: The node.
        agent_id: The agent that calls the tool.
        call_id: The id of the call in the conversation.
        invocation_id: An idempotency key: the same for every attempt and after every restart.
        http: An HTTP client that does not connect to private addresses.
        secret: Reads a credential of the tenant by name. With a `host`, only a credential whose
            audience includes that host.
        traceparent: The trace of the run; empty without one.

    Example:
        >>> from wopr import ToolContext, tool
        >>> @tool
        ... async def refund(order: str, context: ToolContext) -> str:
        ...     "Refund an order."
        ...     key = {"Idempotency-Key": context.invocation_id}
        ...     await context.http.post(f"https://pay.example/refunds/{order}", headers=key)
        ...     return "done"
    """

    tenant: str
    run_id: str
    node_id: str
    agent_id: str
    call_id: str
    invocation_id: str
    http: httpx.AsyncClient
    secret: SecretResolver
    traceparent: str = ""


class ToolFault(Exception):
    """Raise it in a tool to report a failed call to the model, which can then continue.

    Args:
        message: What went wrong. A message that is too long is truncated.
        code: The error code on the log.

    Example:
        >>> from wopr import ToolFault
        >>> ToolFault("there is no order A-17").code
        'tool_error'
    """

    def __init__(self, message: str, *, code: str = "tool_error") -> None:
        length = len(message)
        if length > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]}… (truncated: {length} characters)"
        super().__init__(message)
        self.code = code


class Tool(Protocol):
    """A tool that a model may call.

    The name is used in allowlists and on the log, such as `acme:search_orders`. `parameters` is a
    JSON Schema of one object. Arguments are checked against it before the call.
    """

    @property
    def name(self) -> str:
        """The name in allowlists and on the log."""
        ...

    @property
    def description(self) -> str:
        """The description for the model."""
        ...

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of the arguments object."""
        ...

    @property
    def transport(self) -> Transport:
        """The transport of the call."""
        ...

    @property
    def required_scopes(self) -> tuple[str, ...]:
        """The scopes that the key that started the run must have."""
        ...

    async def call(self, arguments: JsonObject, context: ToolContext) -> Json:
        """Call the tool and return JSON. Raises `ToolFault` with a message for the model."""
        ...

"""An operation: a route, who may call it, what it reads and answers. OpenAPI comes from these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from wopr.http.answers import Answer, Stream
from wopr.http.exchange import Exchange
from wopr.protocol.documents import JsonObject
from wopr.runtime.settings import Settings

Offered: TypeAlias = Callable[[Settings], None]
Handler: TypeAlias = Callable[[Exchange], Awaitable[Answer | Stream]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A query or header parameter."""

    name: str
    description: str
    schema: JsonObject
    where: Literal["query", "header"] = "query"
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path. No scope means that anybody may call it."""

    name: str
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handler: Handler
    summary: str
    tag: str
    scope: str | None = None
    body: type[Any] | None = None
    body_is_optional: bool = False
    # The media types of a body that is no JSON document.
    body_types: tuple[str, ...] = ()
    success: int = 200
    answer: type[Any] | None = None
    content_type: str = "application/json"
    other_content_types: tuple[str, ...] = ()
    # What 200 answers when the caller only asks what would happen.
    preview: type[Any] | None = None
    other_answers: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    # Media types of refusals besides the envelope's.
    error_types: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    # The handler stores the idempotent answer itself, in the transaction that it describes.
    remembers: bool = False
    is_extension: bool = False
    # Raises when the operator has switched this off; asked once the caller is known, before all
    # else, so that the answer does not depend on what the request is about.
    offered: Offered | None = None
    # What the audit calls this; a key that may not do it is then put on record.
    action: str | None = None

    @property
    def mutates(self) -> bool:
        """Whether `Idempotency-Key` means something here."""
        return self.method != "GET"

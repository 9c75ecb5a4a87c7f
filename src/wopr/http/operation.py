"""An operation: a route, who may call it, what it reads and answers. OpenAPI comes from these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from wopr.http.answers import Answer, Later, Stream
from wopr.http.exchange import Exchange
from wopr.protocol.documents import JsonObject
from wopr.runtime.settings import Settings

Offered: TypeAlias = Callable[[Settings], None]
Handler: TypeAlias = Callable[[Exchange], Awaitable[Answer | Stream | Later]]
ReadLevel: TypeAlias = Literal["all", "sensitive", "recorded"]


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
    # Whether `Idempotency-Key` is read where the method changes something.
    takes_key: bool = True
    is_extension: bool = False
    # Raises when the operator has switched this off; asked once the caller is known, before all
    # else, so that the answer does not depend on what the request is about.
    offered: Offered | None = None
    # Whether the operator lets clients without a key call this, although it has a scope.
    is_open: Callable[[Settings], bool] | None = None
    # Whether requests without a key are not counted: probes, and files that browsers keep.
    is_unlimited: bool = False
    # What the audit calls this; a key that may not do it is then put on record.
    action: str | None = None
    # Which level of `WOPR_AUDIT_READS` puts a read on record. A `recorded` handler does so itself.
    read: ReadLevel = "all"

    @property
    def is_idempotent(self) -> bool:
        """Whether `Idempotency-Key` means something here."""
        return self.takes_key and self.method != "GET"

    def needs_key(self, settings: Settings) -> bool:
        """Whether a client must authenticate to call this."""
        return self.scope is not None and not (self.is_open and self.is_open(settings))

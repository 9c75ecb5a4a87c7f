"""`Operation`, from which routing and OpenAPI are generated; cursors of pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from wopr.http.request import Request
from wopr.http.response import DeferredResponse, Response, StreamResponse
from wopr.process.settings import Settings
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused

CheckEnabled: TypeAlias = Callable[[Settings], None]
Handler: TypeAlias = Callable[[Request], Awaitable[Response | StreamResponse | DeferredResponse]]
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
    """One method on one path. Without a scope, it needs no key."""

    name: str
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handler: Handler
    summary: str
    tag: str
    scope: str | None = None
    body: type[Any] | None = None
    body_is_optional: bool = False
    # The media types of a body that is not a JSON document.
    body_types: tuple[str, ...] = ()
    success: int = 200
    response: type[Any] | None = None
    content_type: str = "application/json"
    other_content_types: tuple[str, ...] = ()
    # The type of the 200 response to a dry run.
    preview: type[Any] | None = None
    other_statuses: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    # Media types of error responses, in addition to the envelope's.
    error_types: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    # The handler stores the idempotency record itself, in the transaction of its change.
    stores_response: bool = False
    # Whether `Idempotency-Key` is read, if the method is not GET.
    accepts_idempotency_key: bool = True
    is_extension: bool = False
    # Raises an error if the operator has disabled this. Called directly after authentication, so
    # that the error does not depend on the contents of the request.
    check_enabled: CheckEnabled | None = None
    # Whether the operator allows calls without a key, although the operation has a scope.
    is_open: Callable[[Settings], bool] | None = None
    # Whether requests without a key are not counted: probes, and static files.
    is_unlimited: bool = False
    # The action in audit entries.
    action: str | None = None
    # The level of `WOPR_AUDIT_READS` that records a read. `recorded`: the handler records it.
    read_level: ReadLevel = "all"

    @property
    def is_idempotent(self) -> bool:
        """Return whether the operation reads `Idempotency-Key`."""
        return self.accepts_idempotency_key and self.method != "GET"

    def needs_key(self, settings: Settings) -> bool:
        """Return whether a client must authenticate to call this."""
        return self.scope is not None and not (self.is_open and self.is_open(settings))


def camel_case(name: str) -> str:
    """Return a name with underscores in camelCase."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 50, 200
PAGING = (
    Parameter(
        name="cursor",
        description="Start of the page, as given in `nextCursor`.",
        schema={"type": "string"},
    ),
    Parameter(
        name="limit",
        description="Maximum number of items.",
        schema={
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_PAGE_SIZE,
            "default": DEFAULT_PAGE_SIZE,
        },
    ),
)


def page_limit(request: Request) -> int:
    """Return the query parameter `limit` of a page."""
    return request.whole_number("limit", DEFAULT_PAGE_SIZE, least=1, most=MAX_PAGE_SIZE)


def write_cursor(after: tuple[int, str]) -> str:
    """Encode a keyset position as an opaque string."""
    return base64.urlsafe_b64encode(f"{after[0]}:{after[1]}".encode()).decode().rstrip("=")


def read_cursor(raw: str | None, *, least: int = 0) -> tuple[int, str] | None:
    """Decode a keyset position; its time must be `least` or later."""
    if raw is None:
        return None
    try:
        text = base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).decode()
        instant, _, name = text.partition(":")
        after = int(instant), name
        # Only the exact text that this host writes: no other digits, no extra characters.
        if not name or write_cursor(after) != raw or not least <= after[0] < 2**63:
            raise ValueError(text)
        return after
    except (ValueError, binascii.Error):
        raise Refused(
            "cursor is not valid: use the nextCursor of a previous response", field="cursor"
        ) from None

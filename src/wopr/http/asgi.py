"""The ASGI types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# The key in a request's scope of a function that marks its connection as that of a tenant.
AUTHENTICATED: Final = "wopr.authenticated"
# The key in a request's scope of a function that closes its connection at once.
ABORT: Final = "wopr.abort"

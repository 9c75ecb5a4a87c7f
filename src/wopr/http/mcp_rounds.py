"""A call in rounds: a client that can be asked is asked, in the way that its version knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from mcp.server import ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponses,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any, Any]
Ask = Callable[[InputResponses | None, str | None], Awaitable[CallToolResult | InputRequiredResult]]
_CANCELLED: Final = ElicitResult(action="cancel")


def can_be_asked(ctx: Context) -> bool:
    """Whether the client can put a form before a person, now."""
    declared = ctx.session.client_capabilities
    if declared is None or declared.elicitation is None:
        return False
    # An empty capability is one from before there were kinds of it, and means forms.
    has_form = declared.elicitation.form is not None or declared.elicitation.url is None
    return has_form and (_asks_by_result(ctx) or ctx.session.can_send_request)


async def in_rounds(
    ctx: Context, params: CallToolRequestParams, ask: Ask, seconds: float = 0
) -> CallToolResult | InputRequiredResult:
    """Make a call until it has its result.

    A client of today's version gets the question as a result and calls again with the answer; an
    older one is asked while its call waits. One that cannot be asked, or does not answer within
    `seconds` (0 is no limit), is taken to have cancelled.
    """
    result = await ask(params.input_responses, params.request_state)
    while isinstance(result, InputRequiredResult):
        if _asks_by_result(ctx) and can_be_asked(ctx):
            return result
        requests = result.input_requests or {}
        answers: InputResponses = {
            key: await _asked(ctx, request, seconds) for key, request in requests.items()
        }
        result = await ask(answers, result.request_state)
    return result


async def _asked(ctx: Context, request: InputRequest, seconds: float) -> ElicitResult:
    form = request.params if isinstance(request, ElicitRequest) else None
    if not isinstance(form, ElicitRequestFormParams) or not can_be_asked(ctx):
        return _CANCELLED
    with anyio.move_on_after(seconds or None):
        return await ctx.session.elicit_form(
            form.message, form.requested_schema, related_request_id=ctx.request_id
        )
    return _CANCELLED


def _asks_by_result(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

"""`wopr.http.request`: call an HTTP service. The SSRF guard limits the destinations."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import httpx
import msgspec

from wopr.agents.tools.http_tools import SAFE_METHODS, body_of
from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext, ToolUse
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset
from wopr.security.ssrf import DestinationDenied

TYPE_ID = "wopr.http.request"
HttpMethod: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


class HttpRequestConfig(Closed, frozen=True, kw_only=True):
    """The request. The inputs `url`, `headers` and `body` take precedence."""

    url: NonEmpty | Unset = UNSET
    method: HttpMethod = "GET"
    headers: dict[str, str] = {}
    body: Json | Unset = UNSET
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=120_000)] = 10_000
    # Scopes that the key that started the run must have.
    required_scopes: list[NonEmpty] = []
    fail_on_error_status: bool = True


class HttpRequestInputs(Closed, frozen=True, kw_only=True):
    """The parts of the request that can come from other nodes."""

    url: NonEmpty | Unset = UNSET
    headers: dict[str, str] = {}
    body: Json | Unset = UNSET


@node(TYPE_ID)
async def http_request(
    ctx: NodeContext, config: HttpRequestConfig, inputs: HttpRequestInputs
) -> Completed:
    """Send the request and return status, headers and body.

    The call and its result are logged as a tool call of the host, without content. A request with
    an unsafe method is sent once per logical invocation, with its id as `Idempotency-Key`. If it
    was sent before a restart, the recorded response is used.
    """
    url = config.url if isinstance(inputs.url, Unset) else inputs.url
    if isinstance(url, Unset):
        raise NodeFailure(
            "url is missing: give config.url or the input url",
            code="validation_error",
            retryable=False,
        )

    async def send() -> Json:
        response = await _send(ctx, config, inputs, url)
        # Within the effect, so that an error response is not recorded and a retry sends again.
        if config.fail_on_error_status and response["status"] >= 400:
            raise _error_status(config, url, response["status"])
        return response

    async def send_once() -> Json:
        return await ctx.once(f"http:{url}", send)

    use = ToolUse(
        tool_name=TYPE_ID,
        arguments=_arguments(config, inputs, url),
        transport="http",
        required_scopes=tuple(config.required_scopes),
    )
    effect = send if config.method in SAFE_METHODS else send_once
    response = await ctx.call_tool(use, effect, lambda response: {"status": response["status"]})
    return Completed(response)


def _error_status(config: HttpRequestConfig, url: str, status: int) -> NodeFailure:
    return NodeFailure(
        f"{config.method} {httpx.URL(url).host} answered {status}",
        code="http_error",
        retryable=status >= 500 or status == 429,
        details={"status": status},
    )


def _arguments(config: HttpRequestConfig, inputs: HttpRequestInputs, url: str) -> JsonObject:
    """Return the arguments of the call for its hash, without headers: they may be credentials."""
    body = _request_body(config, inputs)
    arguments: JsonObject = {"method": config.method, "url": url}
    return arguments if isinstance(body, Unset) else arguments | {"body": body}


def _request_body(config: HttpRequestConfig, inputs: HttpRequestInputs) -> Json:
    return config.body if isinstance(inputs.body, Unset) else inputs.body


async def _send(
    ctx: NodeContext, config: HttpRequestConfig, inputs: HttpRequestInputs, url: str
) -> Json:
    body = _request_body(config, inputs)
    headers = config.headers | inputs.headers
    if config.method not in SAFE_METHODS:
        headers = {"Idempotency-Key": ctx.invocation_id(f"http:{url}")} | headers
    try:
        response = await ctx.http.request(
            config.method,
            url,
            headers=headers,
            timeout=config.timeout_ms / 1000,
            **({} if isinstance(body, Unset) else {"json": body}),
        )
    except DestinationDenied as denied:
        raise NodeFailure(str(denied), code="egress_denied", retryable=False) from denied
    except httpx.InvalidURL as fault:
        raise NodeFailure(f"url: {fault}", code="validation_error", retryable=False) from fault
    except httpx.PoolTimeout as busy:
        raise NodeFailure(f"{httpx.URL(url).host}: {busy}", code="http_error") from busy
    except httpx.HTTPError as fault:
        host = httpx.URL(url).host
        raise NodeFailure(f"{host}: {type(fault).__name__}", code="http_error") from fault
    return {
        "status": response.status_code,
        "headers": dict(response.headers),
        "body": body_of(response),
    }

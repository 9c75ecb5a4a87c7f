"""`wopr.http.request`: call an HTTP service, never one that the SSRF guard forbids."""

from __future__ import annotations

from typing import Annotated, Literal

import httpx
import msgspec

from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, Json, NonEmpty, Unset
from wopr.security.ssrf import DestinationDenied

SAFE_METHODS = frozenset({"GET", "HEAD"})


class HttpRequestConfig(Closed, frozen=True, kw_only=True):
    """The request; inputs `url`, `headers` and `body` take precedence over these."""

    url: NonEmpty | Unset = UNSET
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, str] = {}
    body: Json | Unset = UNSET
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=120_000)] = 10_000
    fail_on_error_status: bool = True


class HttpRequestInputs(Closed, frozen=True, kw_only=True):
    """What usually comes from other nodes."""

    url: NonEmpty | Unset = UNSET
    headers: dict[str, str] = {}
    body: Json | Unset = UNSET


@node("wopr.http.request")
async def http_request(
    ctx: NodeContext, config: HttpRequestConfig, inputs: HttpRequestInputs
) -> Completed:
    """Send the request and return status, headers and body.

    A method that changes something is sent once per logical invocation and carries its id as
    `Idempotency-Key`; when a restart finds it sent, the recorded answer is used.
    """
    url = config.url if isinstance(inputs.url, Unset) else inputs.url
    if isinstance(url, Unset):
        raise NodeFailure(
            "url is missing: give config.url or the input url",
            code="validation_error",
            retryable=False,
        )

    async def send() -> Json:
        answer = await _send(ctx, config, inputs, url)
        # Within the effect, so that an answer worth another try is not recorded as the last one.
        if config.fail_on_error_status and answer["status"] >= 400:
            raise _error_status(config, url, answer["status"])
        return answer

    answer = await send() if config.method in SAFE_METHODS else await ctx.once(f"http:{url}", send)
    return Completed(answer)


def _error_status(config: HttpRequestConfig, url: str, status: int) -> NodeFailure:
    return NodeFailure(
        f"{config.method} {httpx.URL(url).host} answered {status}",
        code="http_error",
        retryable=status >= 500 or status == 429,
        details={"status": status},
    )


async def _send(
    ctx: NodeContext, config: HttpRequestConfig, inputs: HttpRequestInputs, url: str
) -> Json:
    body = config.body if isinstance(inputs.body, Unset) else inputs.body
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
    except httpx.HTTPError as fault:
        host = httpx.URL(url).host
        raise NodeFailure(f"{host}: {type(fault).__name__}", code="http_error") from fault
    return {
        "status": response.status_code,
        "headers": dict(response.headers),
        "body": _body(response),
    }


def _body(response: httpx.Response) -> Json:
    if "json" in response.headers.get("content-type", ""):
        try:
            return msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            return response.text
    return response.text

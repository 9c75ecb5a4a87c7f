"""HTTP tools: requests that the author of a workflow declares and a model makes."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Annotated, Final, Literal
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from wopr.agents.tools.tool import ToolContext, ToolFault, Transport
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset, is_object
from wopr.protocol.json_schema.validation import schema_faults
from wopr.security.ssrf import DestinationDenied

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_NO_ARGUMENTS: Final[JsonObject] = {"type": "object", "properties": {}}


class HttpTool(Closed, frozen=True, kw_only=True):
    """A request that a model can make.

    `{name}` in the path or the query of the URL is replaced by an argument. Other arguments become
    the query of a GET or DELETE, or else the JSON body. Arguments cannot change the host of the
    URL. `credentialsRef` names a credential of the tenant for a header.
    """

    name: NonEmpty
    description: NonEmpty
    url: NonEmpty
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    parameters: JsonObject = msgspec.field(default_factory=lambda: dict(_NO_ARGUMENTS))
    headers: dict[str, str] = {}
    credentials_ref: NonEmpty | Unset = UNSET
    credential_header: NonEmpty = "Authorization"
    credential_prefix: str = "Bearer "
    scopes: list[NonEmpty] = []
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=120_000)] = 30_000

    @property
    def transport(self) -> Transport:
        """The transport of the call."""
        return "http"

    @property
    def required_scopes(self) -> tuple[str, ...]:
        """The scopes that the key that started the run must have."""
        return tuple(self.scopes)

    async def call(self, arguments: JsonObject, context: ToolContext) -> Json:
        """Send the request. A response of 400 or more is an error for the model."""
        rest = dict(arguments)
        url = self._url(rest)
        try:
            response = await context.http.request(
                self.method,
                url,
                headers=await self._headers(context),
                timeout=self.timeout_ms / 1000,
                **self._content(rest),
            )
        except DestinationDenied as denied:
            raise ToolFault(str(denied), code="egress_denied") from denied
        except httpx.PoolTimeout as busy:
            raise ToolFault(str(busy), code="http_error") from busy
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            raise ToolFault(type(fault).__name__, code="http_error") from fault
        if response.status_code >= 300:
            raise ToolFault(f"the service answered {response.status_code}", code="http_error")
        return {"status": response.status_code, "body": body_of(response)}

    def _url(self, rest: JsonObject) -> str:
        """Return the URL with its arguments, which are removed from `rest`."""
        pieces: list[str] = []
        for text, field, _, _ in string.Formatter().parse(self.url):
            pieces.append(text)
            if field:
                pieces.append(_encode_argument(field, rest.pop(field, "")))
        return "".join(pieces)

    def _content(self, rest: JsonObject) -> JsonObject:
        if not rest:
            return {}
        if self.method in ("GET", "DELETE"):
            return {"params": {name: _argument_text(value) for name, value in rest.items()}}
        return {"json": rest}

    async def _headers(self, context: ToolContext) -> dict[str, str]:
        headers = dict(self.headers)
        if self.method not in SAFE_METHODS:
            headers = {"Idempotency-Key": context.invocation_id} | headers
        if not isinstance(self.credentials_ref, Unset):
            host = urlsplit(self.url).hostname or ""
            value = await context.secret(self.credentials_ref, host=host)
            headers[self.credential_header] = f"{self.credential_prefix}{value}"
        return headers


def http_tool_faults(path: str, tool: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the faults of a declared HTTP tool that its schema cannot express."""
    url, parameters = tool.get("url"), tool.get("parameters")
    if isinstance(url, str):
        yield from ((f"{path}.url", message) for message in _url_faults(url))
    if is_object(parameters):
        for fault in schema_faults(f"{path}.parameters", parameters):
            yield fault.path, fault.message


def _url_faults(url: str) -> Iterator[str]:
    try:
        fields = [(text, field) for text, field, _, _ in string.Formatter().parse(url)]
        parts = urlsplit(url)
    except ValueError as fault:
        yield str(fault)
        return
    if parts.scheme not in ("https", "http") or not parts.hostname:
        yield "must be an absolute http or https URL"
    if "{" in parts.netloc or "}" in parts.netloc:
        yield "the host must not contain an argument"
    if any(field == "" for _, field in fields if field is not None):
        yield "every placeholder needs the name of an argument"


def _encode_argument(name: str, value: Json) -> str:
    """Return an argument encoded for its place in a URL."""
    text = _argument_text(value)
    if text in ("", ".", ".."):
        raise ToolFault(f"{name} cannot be {text!r}", code="validation_error")
    return quote(text, safe="")


def _argument_text(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def body_of(response: httpx.Response) -> Json:
    """Return the body of a response, decoded if it is JSON."""
    if "json" in response.headers.get("content-type", ""):
        try:
            return msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            return response.text
    return response.text

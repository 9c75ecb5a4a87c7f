"""Outgoing HTTP to destinations that somebody else named: resolve, check, dial what was checked."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, TypeAlias, cast

import anyio
import httpcore
import httpx

from wopr.security.ssrf import DestinationDenied, check_url, is_blocked_address

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# What a request may take along to another origin. Everything else may be a credential: any
# header can carry a key, and a key is for the host it was issued for.
_PORTABLE_HEADERS: Final = frozenset(
    "accept accept-language user-agent traceparent tracestate "
    "content-type content-length content-encoding transfer-encoding".split()
)


class ResponseTooLarge(httpx.TransportError):
    """The answer is longer than the caller allows."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system for every address of a name."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections only to addresses it has checked itself.

    The name is resolved once per connection, and the very addresses that were checked are
    dialled, so a name that changes its mind in between gains nothing. TLS and the `Host` header
    keep the name.
    """

    def __init__(
        self,
        resolver: Resolver,
        *,
        allow_private: bool,
        dialler: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._resolver = resolver
        self._allow_private = allow_private
        # httpcore types its own as a stand-in for when anyio is missing.
        own = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())
        self._dialler = own if dialler is None else dialler

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore calls it by this name
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of the host that answers."""
        try:
            with anyio.fail_after(timeout):
                addresses = await self._checked(host, port)
                return await self._first(addresses, port, local_address, socket_options)
        except TimeoutError as late:
            raise httpcore.ConnectTimeout(f"no connection within {timeout} s") from late

    async def _checked(self, host: str, port: int) -> Sequence[str]:
        addresses = [host] if _is_address(host) else await self._resolved(host, port)
        # One private address among public ones is refused too: the resolver picks the order.
        if not self._allow_private and any(map(is_blocked_address, addresses)):
            raise DestinationDenied("the name leads to an address that is not public")
        return addresses

    async def _resolved(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = await self._resolver(host, port)
        except (OSError, UnicodeError) as unknown:
            raise httpcore.ConnectError("the name does not resolve") from unknown
        if not addresses:
            raise httpcore.ConnectError("the name has no address")
        return addresses

    async def _first(
        self,
        addresses: Sequence[str],
        port: int,
        local_address: str | None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None,
    ) -> httpcore.AsyncNetworkStream:
        failure: httpcore.ConnectError | None = None
        for address in addresses:
            try:
                return await self._dialler.connect_tcp(
                    address, port, local_address=local_address, socket_options=socket_options
                )
            except httpcore.ConnectError as refused:
                failure = refused
        raise failure or httpcore.ConnectError("no address to dial")


class GuardedTransport(httpx.AsyncBaseTransport):
    """An httpx transport that checks every request and caps every answer.

    Each hop of a redirect is a request of its own and passes here again.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        max_response_bytes: int,
        resolver: Resolver = resolve,
        ssl_context: ssl.SSLContext | None = None,
        dialler: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._max_response_bytes = max_response_bytes
        backend = PinnedBackend(resolver, allow_private=allow_private, dialler=dialler)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context or httpx.create_ssl_context(),
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request. Raises `DestinationDenied` before anything is dialled."""
        check_url(str(request.url), allow_private=self._allow_private)
        request.headers["Host"] = request.url.netloc.decode("ascii")
        # The cap counts bytes on the wire; a small compressed body could unpack to a huge one.
        request.headers["Accept-Encoding"] = "identity"
        with _as_httpx_errors():
            answer = await self._pool.handle_async_request(_core_request(request))
        response = httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_CappedStream(answer, self._max_response_bytes),
            extensions=cast("dict[str, object]", answer.extensions),
        )
        await self._require_fitting(response)
        return response

    async def _require_fitting(self, response: httpx.Response) -> None:
        """Refuse by the headers alone what could only fail later."""
        length = response.headers.get("Content-Length", "")
        if len(length) > 19 or (length.isdecimal() and int(length) > self._max_response_bytes):
            await response.aclose()
            raise ResponseTooLarge(f"the answer is over {self._max_response_bytes} bytes")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await response.aclose()
            raise httpx.RemoteProtocolError("the answer is compressed though none was asked for")

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _CappedStream(httpx.AsyncByteStream):
    """The body of an answer, up to a limit."""

    def __init__(self, answer: httpcore.Response, limit: int) -> None:
        self._answer = answer
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        with _as_httpx_errors():
            async for part in self._answer.aiter_stream():
                received += len(part)
                if received > self._limit:
                    raise ResponseTooLarge(f"the answer is over {self._limit} bytes")
                yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


def guarded_client(
    *,
    allow_private: bool,
    max_response_bytes: int,
    timeout: float | httpx.Timeout,
    resolver: Resolver = resolve,
    ssl_context: ssl.SSLContext | None = None,
) -> httpx.AsyncClient:
    """Build the client for destinations that somebody else named.

    It follows no redirect by itself (use `follow`), reads no proxy from the environment and
    keeps no cookies: tenants share it.
    """
    transport = GuardedTransport(
        allow_private=allow_private,
        max_response_bytes=max_response_bytes,
        resolver=resolver,
        ssl_context=ssl_context,
    )
    return httpx.AsyncClient(
        transport=transport,
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
    )


async def follow(
    client: httpx.AsyncClient, request: httpx.Request, *, max_redirects: int = 5
) -> httpx.Response:
    """Send a request and follow its redirects, each hop checked like the first.

    A hop to another origin takes no credential along, under whatever header it was sent, and
    none comes back if a later hop returns.
    """
    response = await client.send(request)
    for _ in range(max_redirects):
        if response.next_request is None:
            return response
        response = await client.send(_next_hop(response.request, response.next_request))
    if response.next_request is None:
        return response
    raise httpx.TooManyRedirects(f"more than {max_redirects} redirects", request=request)


def _next_hop(before: httpx.Request, after: httpx.Request) -> httpx.Request:
    if _origin(before.url) != _origin(after.url):
        for name in set(after.headers) - _PORTABLE_HEADERS:
            del after.headers[name]
    return after


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _core_request(request: httpx.Request) -> httpcore.Request:
    url = request.url
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        ),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


_ERRORS: Final[tuple[tuple[type[Exception], type[httpx.TransportError]], ...]] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.UnsupportedProtocol, httpx.UnsupportedProtocol),
)


@contextmanager
def _as_httpx_errors() -> Generator[None]:
    """Raise the errors of the layer below under the names that httpx callers handle."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as failure:
        outer = next(outer for inner, outer in _ERRORS if isinstance(failure, inner))
        raise outer(str(failure)) from failure
    except AttributeError as failure:
        # A peer that hangs up at once leaves the connection without its socket, which the layer
        # below looks at before the first byte.
        raise httpx.ConnectError("the connection was lost before it was used") from failure

"""Outgoing HTTP to destinations of users: resolves names, checks addresses, and connects."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, Self, TypeAlias, cast

import anyio
import httpcore
import httpx

from wopr.process.tenant_slots import TenantSlots
from wopr.security.ssrf import DestinationDenied, check_url, is_blocked_address

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# Headers that a redirect to another origin keeps. Any other header may contain a credential.
_PORTABLE_HEADERS: Final = frozenset(
    "accept accept-language user-agent traceparent tracestate "
    "content-type content-length content-encoding transfer-encoding".split()
)
# The tenant of the current request, because a connection pool passes only the address to its
# backend.
_tenant: ContextVar[str] = ContextVar("wopr.egress.tenant", default="")


class ResponseTooLarge(httpx.TransportError):
    """The response is longer than the caller allows."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a name to all of its addresses.

    Each lookup has its own thread, because it may take long, cannot be stopped, and would block a
    thread of a pool. The thread does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def set_result(addresses: Sequence[str], fault: Exception | None) -> None:
        if found.done():
            return
        if fault is None:
            found.set_result(addresses)
        else:
            found.set_exception(fault)

    def look_up() -> None:
        addresses: Sequence[str] = ()
        fault: Exception | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in infos))
        except Exception as failure:
            fault = failure
        # The loop is closed if the process stops before the lookup ends.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(set_result, addresses, fault)

    threading.Thread(target=look_up, name="wopr-lookup", daemon=True).start()
    return await found


class Lookups:
    """Resolves names, a few for each tenant at the same time.

    A request that ends before its lookup does not wait for it. The lookup keeps its slot until it
    ends, so that a tenant never has more threads than slots.
    """

    def __init__(self, resolver: Resolver, per_tenant: int) -> None:
        self._resolver = resolver
        self._slots = TenantSlots(per_tenant)
        # The event loop has only weak references to tasks.
        self._tasks: set[asyncio.Task[Sequence[str]]] = set()

    async def begin(
        self, tenant: str, host: str, port: int, deadline: float
    ) -> asyncio.Task[Sequence[str]]:
        """Begin to resolve a name in a slot of a tenant.

        Raises `httpcore.PoolTimeout` when no slot of the tenant is free before the deadline.
        """
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                await self._slots.acquire(tenant)
        except TimeoutError as late:
            raise httpcore.PoolTimeout(
                f"{self._slots.per_tenant} names are being resolved for this tenant, which is the "
                "limit (WOPR_MAX_LOOKUPS_PER_TENANT), and none was done before the timeout"
            ) from late

        def end(task: asyncio.Task[Sequence[str]]) -> None:
            self._tasks.discard(task)
            self._slots.release(tenant)
            if not task.cancelled():
                # Marks the error as handled: the request may have ended before.
                task.exception()

        task = asyncio.create_task(self._resolve(host, port))
        self._tasks.add(task)
        task.add_done_callback(end)
        return task

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        return await self._resolver(host, port)


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections only to addresses that it has checked.

    A name is resolved once per connection, and the connection uses the checked addresses, so DNS
    rebinding has no effect. TLS and the `Host` header keep the name.
    """

    def __init__(
        self,
        lookups: Lookups,
        *,
        allow_private: bool,
        backend: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._lookups = lookups
        self._allow_private = allow_private
        # httpcore declares a placeholder type for the case that anyio is missing.
        own = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())
        self._backend = own if backend is None else backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore calls it by this name
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of the host that accepts."""
        deadline = anyio.current_time() + (math.inf if timeout is None else timeout)
        lookup = None
        if not _is_address(host):
            lookup = await self._lookups.begin(_tenant.get(), host, port, deadline)
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                addresses = [host] if lookup is None else await _wait_for_addresses(lookup)
                # One private address among public ones is enough to refuse: the order is arbitrary.
                if not self._allow_private and any(map(is_blocked_address, addresses)):
                    raise DestinationDenied("the name resolves to an address that is not public")
                return await self._connect_first(addresses, port, local_address, socket_options)
        except TimeoutError as late:
            raise httpcore.ConnectTimeout(f"no connection within {timeout} s") from late

    async def _connect_first(
        self,
        addresses: Sequence[str],
        port: int,
        local_address: str | None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None,
    ) -> httpcore.AsyncNetworkStream:
        failure: httpcore.ConnectError | None = None
        for address in addresses:
            try:
                return await self._backend.connect_tcp(
                    address, port, local_address=local_address, socket_options=socket_options
                )
            except httpcore.ConnectError as refused:
                failure = refused
        raise failure or httpcore.ConnectError("no address to connect to")


class Egress:
    """The outgoing connections of a host, with slots for each tenant.

    There is no limit for all tenants together, because hanging requests of one tenant could use it
    up.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        max_response_bytes: int,
        timeout: float | httpx.Timeout,
        requests_per_tenant: int = 50,
        lookups_per_tenant: int = 4,
        resolver: Resolver = resolve,
        ssl_context: ssl.SSLContext | None = None,
        backend: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self.allow_private = allow_private
        self.max_response_bytes = max_response_bytes
        self.requests = TenantSlots(requests_per_tenant)
        self._timeout = timeout
        self.pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context or httpx.create_ssl_context(),
            max_connections=None,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=PinnedBackend(
                Lookups(resolver, lookups_per_tenant), allow_private=allow_private, backend=backend
            ),
        )
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self.pool.aclose()

    def client(self, tenant: str) -> httpx.AsyncClient:
        """Return the client for destinations of a tenant.

        It follows no redirect by itself (use `follow`), reads no proxy from the environment and
        keeps no cookies.
        """
        found = self._clients.get(tenant)
        # A node may have closed it.
        if found is None or found.is_closed:
            found = self._clients[tenant] = httpx.AsyncClient(
                transport=GuardedTransport(self, tenant),
                timeout=self._timeout,
                trust_env=False,
                follow_redirects=False,
                cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
            )
        return found


class GuardedTransport(httpx.AsyncBaseTransport):
    """An httpx transport that checks every request of a tenant and limits every response.

    Each hop of a redirect is a separate request. A request has a slot of its tenant until its
    response is closed.
    """

    def __init__(self, egress: Egress, tenant: str) -> None:
        self._egress = egress
        self._tenant = tenant

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request. Raises `DestinationDenied` before a connection is opened."""
        egress = self._egress
        check_url(str(request.url), allow_private=egress.allow_private)
        request.headers["Host"] = request.url.netloc.decode("ascii")
        # The limit counts received bytes, and a small compressed body could expand to a huge one.
        request.headers["Accept-Encoding"] = "identity"
        await self._acquire_slot(request)
        slot = ExitStack()
        slot.callback(egress.requests.release, self._tenant)
        try:
            # The connection is opened by this task, so the backend sees this value.
            _tenant.set(self._tenant)
            with _as_httpx_errors():
                core_response = await egress.pool.handle_async_request(_core_request(request))
        except BaseException:
            slot.close()
            raise
        response = httpx.Response(
            status_code=core_response.status,
            headers=core_response.headers,
            stream=_CappedStream(core_response, egress.max_response_bytes, slot),
            extensions=cast("dict[str, object]", core_response.extensions),
        )
        await self._check_headers(response)
        return response

    async def _acquire_slot(self, request: httpx.Request) -> None:
        """Wait for a slot of the tenant, up to the timeout of the request."""
        timeout = cast("dict[str, float | None]", request.extensions.get("timeout", {}))
        requests = self._egress.requests
        try:
            with anyio.fail_after(timeout.get("pool")):
                await requests.acquire(self._tenant)
        except TimeoutError as late:
            raise httpx.PoolTimeout(
                f"{requests.per_tenant} requests of this tenant are in progress, which is the "
                "limit (WOPR_MAX_OUTGOING_PER_TENANT), and none ended before the timeout"
            ) from late

    async def _check_headers(self, response: httpx.Response) -> None:
        """Refuse a response whose headers show that it is too large or compressed."""
        length = response.headers.get("Content-Length", "")
        if len(length) > 19 or (
            length.isdecimal() and int(length) > self._egress.max_response_bytes
        ):
            await response.aclose()
            raise ResponseTooLarge(f"the response is over {self._egress.max_response_bytes} bytes")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await response.aclose()
            raise httpx.RemoteProtocolError(
                "the response is compressed although compression was not requested"
            )


class _CappedStream(httpx.AsyncByteStream):
    """The body of a response, up to a limit. Closing it releases the slot of the request."""

    def __init__(self, core_response: httpcore.Response, limit: int, slot: ExitStack) -> None:
        self._response = core_response
        self._limit = limit
        self._slot = slot

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        with _as_httpx_errors():
            async for part in self._response.aiter_stream():
                received += len(part)
                if received > self._limit:
                    raise ResponseTooLarge(f"the response is over {self._limit} bytes")
                yield part

    async def aclose(self) -> None:
        with self._slot:
            await self._response.aclose()


async def follow(
    client: httpx.AsyncClient, request: httpx.Request, *, max_redirects: int = 5
) -> httpx.Response:
    """Send a request and follow its redirects, each hop checked like the first.

    A hop to another origin loses all headers that may hold a credential, also for later hops.
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


async def _wait_for_addresses(lookup: asyncio.Task[Sequence[str]]) -> Sequence[str]:
    """Wait for the addresses of a lookup, which continues when the caller is cancelled."""
    try:
        addresses = await asyncio.shield(lookup)
    except (OSError, UnicodeError) as unknown:
        raise httpcore.ConnectError("the name does not resolve") from unknown
    if not addresses:
        raise httpcore.ConnectError("the name has no address")
    return addresses


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
    """Translate errors of httpcore into those of httpx."""
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
        # A peer that disconnects at once leaves a connection without a socket, which httpcore
        # accesses before the first byte.
        raise httpx.ConnectError("the connection was lost before it was used") from failure

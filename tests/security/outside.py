"""An external destination: its name, its addresses, and a server with configured responses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import httpcore
import httpx
from anyio.streams.tls import TLSListener

from wopr.process.egress import Egress

PUBLIC = "93.184.216.34"
NAME = "hooks.example.test"
Answer = Callable[[str], bytes]


def answer(body: bytes = b"ok", *headers: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


class Names:
    """A resolver whose answers are set by the test; the last one repeats."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Dialler(httpcore.AsyncNetworkBackend):
    """Record the dialled addresses, and connect to a loopback port instead."""

    def __init__(self, port: int, refusing: Sequence[str] = ()) -> None:
        self.port = port
        self.refusing = refusing
        self.dialled: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore calls it by this name
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.dialled.append(host)
        if host in self.refusing:
            raise httpcore.ConnectError("refused")
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self.port, timeout)


class Server:
    """A loopback server that responds according to the request's head, and records it."""

    def __init__(self, reply: Answer) -> None:
        self.reply = reply
        self.port = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.names: list[str | None] = []

    async def serve(self, stream: anyio.abc.ByteStream) -> None:
        async with stream:
            received = b""
            while b"\r\n\r\n" not in received:
                received += await stream.receive()
            head, _, body = received.partition(b"\r\n\r\n")
            self.heads.append(head.decode())
            while len(body) < _declared(head):
                body += await stream.receive()
            self.bodies.append(body)
            try:
                await stream.send(self.reply(head.decode()))
            except anyio.BrokenResourceError:
                return


def _declared(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


@asynccontextmanager
async def serving(reply: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(reply)
    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: server.names.append(name)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        server.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        door: anyio.abc.Listener[anyio.abc.ByteStream] = listener
        if tls is not None:
            door = TLSListener(listener, tls, standard_compatible=False)
        tasks.start_soon(door.serve, server.serve)
        yield server
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def exchange(
    reply: Answer, limit: int = 10_000
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """Serve on loopback, with a client that may connect there."""
    async with (
        serving(reply) as server,
        Egress(
            allow_private=True,
            max_response_bytes=limit,
            timeout=60,
            resolver=Names(["127.0.0.1"]),
        ) as egress,
    ):
        yield server, egress.client("acme")


@asynccontextmanager
async def public_client(
    names: Names, dialler: Dialler, tls: ssl.SSLContext
) -> AsyncIterator[httpx.AsyncClient]:
    async with Egress(
        allow_private=False,
        max_response_bytes=10_000,
        timeout=60,
        resolver=names,
        ssl_context=tls,
        backend=dialler,
    ) as egress:
        yield egress.client("acme")

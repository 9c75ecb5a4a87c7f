from __future__ import annotations

import gzip
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.abc
import httpcore
import httpx
import pytest
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from wopr.runtime.egress import GuardedTransport, ResponseTooLarge, follow, guarded_client, resolve
from wopr.security.ssrf import DestinationDenied

pytestmark = pytest.mark.anyio

PUBLIC = "93.184.216.34"
NAME = "hooks.example.test"
Answer = Callable[[str], bytes]


def answer(body: bytes = b"ok", *headers: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"Location: {location}", status=status)


class Names:
    """A resolver whose answers are set by the test; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Dialler(httpcore.AsyncNetworkBackend):
    """Records what is dialled and connects to a loopback port in its place."""

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
    """A loopback server that answers each request by its head, and remembers it."""

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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for NAME and for nothing else, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem + made.public_bytes(Encoding.PEM))
    return path


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def client_tls(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


@asynccontextmanager
async def exchange(
    reply: Answer, limit: int = 10_000
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """Serve on loopback, with a client that is allowed to go there."""
    async with (
        serving(reply) as server,
        guarded_client(
            allow_private=True,
            max_response_bytes=limit,
            timeout=5,
            resolver=Names(["127.0.0.1"]),
        ) as client,
    ):
        yield server, client


def public_client(names: Names, dialler: Dialler, tls: ssl.SSLContext) -> httpx.AsyncClient:
    transport = GuardedTransport(
        allow_private=False,
        max_response_bytes=10_000,
        resolver=names,
        ssl_context=tls,
        dialler=dialler,
    )
    return httpx.AsyncClient(transport=transport, timeout=5, trust_env=False)


async def test_the_checked_address_is_dialled_under_the_original_name(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    names = Names([PUBLIC])

    async with serving(lambda _: answer(), server_tls) as server:
        dialler = Dialler(server.port)
        async with public_client(names, dialler, client_tls) as client:
            response = await client.get(f"https://{NAME}/hook")

    assert response.text == "ok"
    assert names.asked == [(NAME, 443)]
    assert dialler.dialled == [PUBLIC]
    assert server.names == [NAME]
    assert f"Host: {NAME}" in server.heads[0].split("\r\n")


async def test_a_name_that_changes_its_mind_after_the_check_gains_nothing(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    names = Names([PUBLIC], ["127.0.0.1"])

    async with serving(lambda _: answer(), server_tls) as server:
        dialler = Dialler(server.port)
        async with public_client(names, dialler, client_tls) as client:
            await client.get(f"https://{NAME}/hook")
            with pytest.raises(DestinationDenied):
                await client.get(f"https://{NAME}/hook")

    assert dialler.dialled == [PUBLIC]
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        [PUBLIC, "127.0.0.1"],
        ["10.0.0.1", PUBLIC],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["169.254.169.254"],
        ["fe80::1%eth0"],
        ["not an address"],
    ],
)
async def test_one_private_address_among_the_answers_is_enough_to_refuse(
    addresses: list[str], client_tls: ssl.SSLContext
) -> None:
    dialler = Dialler(9)

    async with public_client(Names(addresses), dialler, client_tls) as client:
        with pytest.raises(DestinationDenied):
            await client.get(f"https://{NAME}/hook")

    assert dialler.dialled == []


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.test/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://2130706433/",
        "https://localhost/",
        "https://user:pw@hooks.example.test/",
        "https://169.254.169.254/latest/meta-data",
    ],
)
async def test_a_forbidden_url_is_refused_before_a_name_is_asked_for(
    url: str, client_tls: ssl.SSLContext
) -> None:
    names, dialler = Names([PUBLIC]), Dialler(9)

    async with public_client(names, dialler, client_tls) as client:
        with pytest.raises(DestinationDenied):
            await client.get(url)

    assert names.asked == []
    assert dialler.dialled == []


async def test_the_next_address_is_tried_when_one_does_not_answer(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(lambda _: answer(), server_tls) as server:
        dialler = Dialler(server.port, refusing=[PUBLIC])
        async with public_client(Names([PUBLIC, "1.1.1.1"]), dialler, client_tls) as client:
            response = await client.get(f"https://{NAME}/")

    assert response.status_code == 200
    assert dialler.dialled == [PUBLIC, "1.1.1.1"]


async def test_a_destination_none_of_whose_addresses_answers_is_a_connect_error(
    client_tls: ssl.SSLContext,
) -> None:
    dialler = Dialler(9, refusing=[PUBLIC, "1.1.1.1"])

    async with public_client(Names([PUBLIC, "1.1.1.1"]), dialler, client_tls) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"https://{NAME}/")

    assert dialler.dialled == [PUBLIC, "1.1.1.1"]


class _Lost(httpcore.AsyncNetworkStream):
    """A connection whose peer hung up before it was used."""

    def get_extra_info(self, info: str) -> object:
        socket = None
        return socket.getpeername()  # type: ignore[attr-defined]  # what then happens below

    async def start_tls(self, *_: object, **__: object) -> httpcore.AsyncNetworkStream:
        return self

    async def aclose(self) -> None:
        pass


async def test_a_peer_that_hangs_up_at_once_is_a_connect_error(
    client_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*_: object, **__: object) -> httpcore.AsyncNetworkStream:
        return _Lost()

    dialler = Dialler(9)
    monkeypatch.setattr(dialler, "connect_tcp", connect)

    async with public_client(Names([PUBLIC]), dialler, client_tls) as client:
        with pytest.raises(httpx.ConnectError, match="lost"):
            await client.get(f"https://{NAME}/")


async def test_a_public_address_in_the_url_is_dialled_without_a_resolver(
    client_tls: ssl.SSLContext,
) -> None:
    names, dialler = Names([PUBLIC]), Dialler(9, refusing=["1.1.1.1"])

    async with public_client(names, dialler, client_tls) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("https://1.1.1.1/")

    assert names.asked == []
    assert dialler.dialled == ["1.1.1.1"]


async def test_a_certificate_for_another_name_is_refused(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(lambda _: answer(), server_tls) as server:
        client = public_client(Names([PUBLIC]), Dialler(server.port), client_tls)
        async with client:
            with pytest.raises(httpx.ConnectError):
                await client.get("https://other.example.test/")

    assert server.heads == []


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/admin",
        "https://127.0.0.1/admin",
        "//[::ffff:169.254.169.254]/latest",
        "https://0x7f000001/",
        "http://hooks.example.test/downgraded",
        "https://localhost:8443/",
    ],
)
async def test_a_redirect_to_a_private_address_is_not_followed(
    location: str, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(lambda _: redirect(location), server_tls) as server:
        dialler = Dialler(server.port)
        async with public_client(Names([PUBLIC]), dialler, client_tls) as client:
            with pytest.raises(DestinationDenied):
                await follow(client, client.build_request("GET", f"https://{NAME}/"))

    assert dialler.dialled == [PUBLIC]


async def test_a_redirect_to_a_name_that_leads_inside_is_not_followed(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    names = Names([PUBLIC], ["192.168.1.1"])

    async with serving(lambda _: redirect("https://inside.example.test/"), server_tls) as server:
        dialler = Dialler(server.port)
        async with public_client(names, dialler, client_tls) as client:
            with pytest.raises(DestinationDenied):
                await follow(client, client.build_request("GET", f"https://{NAME}/"))

    assert dialler.dialled == [PUBLIC]


async def test_the_client_follows_no_redirect_by_itself() -> None:
    async with exchange(lambda _: redirect("/next")) as (server, client):
        response = await client.get(f"http://{NAME}:{server.port}/")

    assert response.status_code == 302
    assert len(server.heads) == 1


def hop(head: str) -> bytes:
    if head.startswith("GET /start") or head.startswith("POST /start"):
        port = head.split("Host: ", 1)[1].split("\r\n", 1)[0].partition(":")[2]
        return redirect(f"http://elsewhere.example.test:{port}/end", "307 Temporary Redirect")
    return redirect("/end") if head.startswith("GET /same") else answer()


async def test_a_redirect_to_another_origin_takes_no_credential_along() -> None:
    headers = {
        "Authorization": "Bearer t",
        "X-Api-Key": "k",
        "Cookie": "s=1",
        "Accept": "text/x",
        "traceparent": "00-1",
    }

    async with exchange(hop) as (server, client):
        url = f"http://{NAME}:{server.port}/start"
        request = client.build_request("POST", url, headers=headers, content=b"payload")
        response = await follow(client, request)

    assert response.text == "ok"
    first, second = (head.lower() for head in server.heads)
    assert "authorization" in first
    assert not any(name in second for name in ("authorization", "x-api-key", "cookie"))
    assert f"host: elsewhere.example.test:{server.port}" in second
    assert "accept: text/x" in second
    assert "traceparent: 00-1" in second
    assert server.bodies == [b"payload", b"payload"]


async def test_a_redirect_within_the_origin_keeps_its_credential() -> None:
    async with exchange(hop) as (server, client):
        url = f"http://{NAME}:{server.port}/same"
        await follow(client, client.build_request("GET", url, headers={"X-Api-Key": "k"}))

    assert "x-api-key: k" in server.heads[1].lower()


async def test_endless_redirects_come_to_an_end() -> None:
    async with exchange(lambda _: redirect("/again")) as (server, client):
        request = client.build_request("GET", f"http://{NAME}:{server.port}/")
        with pytest.raises(httpx.TooManyRedirects):
            await follow(client, request, max_redirects=3)

    assert len(server.heads) == 4


async def test_the_last_allowed_redirect_may_arrive() -> None:
    async with exchange(hop) as (server, client):
        request = client.build_request("GET", f"http://{NAME}:{server.port}/same")
        response = await follow(client, request, max_redirects=1)

    assert response.status_code == 200


@pytest.mark.parametrize(
    "reply",
    [
        answer(b"x" * 101),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n"
        + b"x" * 101
        + b"\r\n0\r\n\r\n",
    ],
    ids=["declared", "until close", "chunked"],
)
async def test_an_answer_over_the_limit_is_cut_off(reply: bytes) -> None:
    async with exchange(lambda _: reply, limit=100) as (server, client):
        with pytest.raises(ResponseTooLarge):
            await client.get(f"http://{NAME}:{server.port}/")


async def test_an_answer_of_exactly_the_limit_is_read() -> None:
    async with exchange(lambda _: answer(b"x" * 100), limit=100) as (server, client):
        response = await client.get(f"http://{NAME}:{server.port}/")

    assert len(response.content) == 100


async def test_a_compressed_answer_cannot_unpack_past_the_limit() -> None:
    bomb = answer(gzip.compress(bytes(1_000_000)), "Content-Encoding: gzip")

    async with exchange(lambda _: bomb) as (server, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://{NAME}:{server.port}/")

    assert "accept-encoding: identity" in server.heads[0].lower()


async def test_no_cookie_of_one_answer_is_sent_with_the_next_request() -> None:
    async with exchange(lambda _: answer(b"ok", "Set-Cookie: s=1; Path=/")) as (server, client):
        await client.get(f"http://{NAME}:{server.port}/")
        await client.get(f"http://{NAME}:{server.port}/")

    assert "cookie" not in server.heads[1].lower()


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async with exchange(lambda _: answer()) as (server, client):
        response = await client.get(f"http://{NAME}:{server.port}/")

    assert response.status_code == 200


async def test_a_host_header_of_the_callers_own_does_not_reach_the_wire() -> None:
    async with exchange(lambda _: answer()) as (server, client):
        url = f"http://{NAME}:{server.port}/"
        await client.get(url, headers={"Host": "metadata.google.internal"})

    assert "metadata" not in server.heads[0]


async def test_a_name_without_an_address_is_a_connect_error(client_tls: ssl.SSLContext) -> None:
    async with public_client(Names([]), Dialler(9), client_tls) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"https://{NAME}/")


async def test_a_name_that_does_not_resolve_is_a_connect_error() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    async with guarded_client(
        allow_private=False, max_response_bytes=1, timeout=5, resolver=unknown
    ) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"https://{NAME}/")


async def test_a_resolver_that_hangs_is_a_connect_timeout() -> None:
    async def hanging(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    async with guarded_client(
        allow_private=False, max_response_bytes=1, timeout=0.05, resolver=hanging
    ) as client:
        with pytest.raises(httpx.ConnectTimeout):
            await client.get(f"https://{NAME}/")


async def test_a_server_that_breaks_off_is_an_httpx_error() -> None:
    async with exchange(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") as (
        server,
        client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://{NAME}:{server.port}/")


async def test_the_system_resolver_names_every_address_once() -> None:
    addresses = await resolve("127.0.0.1", 443)

    assert addresses == ["127.0.0.1"]

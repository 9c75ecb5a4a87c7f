from __future__ import annotations

import ssl
from collections.abc import Sequence

import anyio
import anyio.abc
import httpcore
import httpx
import pytest

from tests.security.outside import NAME, PUBLIC, Dialler, Names, answer, public_client, serving
from wopr.process.egress import Egress, resolve
from wopr.security.ssrf import DestinationDenied

pytestmark = pytest.mark.anyio


async def test_a_checked_address_is_dialled_under_the_original_name(
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


async def test_dns_rebinding_after_the_check_has_no_effect(
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
async def test_one_private_address_among_several_is_refused(
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
async def test_a_forbidden_url_is_refused_before_a_name_lookup(
    url: str, client_tls: ssl.SSLContext
) -> None:
    names, dialler = Names([PUBLIC]), Dialler(9)

    async with public_client(names, dialler, client_tls) as client:
        with pytest.raises(DestinationDenied):
            await client.get(url)

    assert names.asked == []
    assert dialler.dialled == []


async def test_the_next_address_is_tried_when_one_does_not_respond(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(lambda _: answer(), server_tls) as server:
        dialler = Dialler(server.port, refusing=[PUBLIC])
        async with public_client(Names([PUBLIC, "1.1.1.1"]), dialler, client_tls) as client:
            response = await client.get(f"https://{NAME}/")

    assert response.status_code == 200
    assert dialler.dialled == [PUBLIC, "1.1.1.1"]


async def test_a_destination_without_a_reachable_address_is_a_connect_error(
    client_tls: ssl.SSLContext,
) -> None:
    dialler = Dialler(9, refusing=[PUBLIC, "1.1.1.1"])

    async with public_client(Names([PUBLIC, "1.1.1.1"]), dialler, client_tls) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"https://{NAME}/")

    assert dialler.dialled == [PUBLIC, "1.1.1.1"]


class _Lost(httpcore.AsyncNetworkStream):
    """A connection whose peer disconnected before it was used."""

    def get_extra_info(self, info: str) -> object:
        socket = None
        return socket.getpeername()  # type: ignore[attr-defined]  # what then happens below

    async def start_tls(self, *_: object, **__: object) -> httpcore.AsyncNetworkStream:
        return self

    async def aclose(self) -> None:
        pass


async def test_a_peer_that_disconnects_at_once_is_a_connect_error(
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
        outside = public_client(Names([PUBLIC]), Dialler(server.port), client_tls)
        async with outside as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("https://other.example.test/")

    assert server.heads == []


async def test_a_name_without_an_address_is_a_connect_error(client_tls: ssl.SSLContext) -> None:
    async with public_client(Names([]), Dialler(9), client_tls) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"https://{NAME}/")


async def test_an_unresolvable_name_is_a_connect_error() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    async with Egress(
        allow_private=False, max_response_bytes=1, timeout=5, resolver=unknown
    ) as egress:
        with pytest.raises(httpx.ConnectError):
            await egress.client("acme").get(f"https://{NAME}/")


async def test_a_hanging_resolver_is_a_connect_timeout() -> None:
    async def hanging(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    async with Egress(
        allow_private=False, max_response_bytes=1, timeout=0.05, resolver=hanging
    ) as egress:
        with pytest.raises(httpx.ConnectTimeout):
            await egress.client("acme").get(f"https://{NAME}/")


async def test_the_system_resolver_returns_every_address_once() -> None:
    addresses = await resolve("127.0.0.1", 443)

    assert addresses == ["127.0.0.1"]

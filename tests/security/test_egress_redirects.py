from __future__ import annotations

import ssl

import httpx
import pytest

from tests.security.outside import (
    NAME,
    PUBLIC,
    Dialler,
    Names,
    answer,
    exchange,
    public_client,
    serving,
)
from wopr.process.egress import follow
from wopr.security.ssrf import DestinationDenied

pytestmark = pytest.mark.anyio


def redirect(location: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"Location: {location}", status=status)


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


async def test_a_redirect_to_a_name_with_a_private_address_is_not_followed(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    names = Names([PUBLIC], ["192.168.1.1"])

    async with serving(lambda _: redirect("https://inside.example.test/"), server_tls) as server:
        dialler = Dialler(server.port)
        async with public_client(names, dialler, client_tls) as client:
            with pytest.raises(DestinationDenied):
                await follow(client, client.build_request("GET", f"https://{NAME}/"))

    assert dialler.dialled == [PUBLIC]


async def test_the_client_follows_no_redirect_by_default() -> None:
    async with exchange(lambda _: redirect("/next")) as (server, client):
        response = await client.get(f"http://{NAME}:{server.port}/")

    assert response.status_code == 302
    assert len(server.heads) == 1


def hop(head: str) -> bytes:
    if head.startswith("GET /start") or head.startswith("POST /start"):
        port = head.split("Host: ", 1)[1].split("\r\n", 1)[0].partition(":")[2]
        return redirect(f"http://elsewhere.example.test:{port}/end", "307 Temporary Redirect")
    return redirect("/end") if head.startswith("GET /same") else answer()


async def test_a_redirect_to_another_origin_carries_no_credential() -> None:
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


async def test_endless_redirects_are_stopped() -> None:
    async with exchange(lambda _: redirect("/again")) as (server, client):
        request = client.build_request("GET", f"http://{NAME}:{server.port}/")
        with pytest.raises(httpx.TooManyRedirects):
            await follow(client, request, max_redirects=3)

    assert len(server.heads) == 4


async def test_the_last_allowed_redirect_succeeds() -> None:
    async with exchange(hop) as (server, client):
        request = client.build_request("GET", f"http://{NAME}:{server.port}/same")
        response = await follow(client, request, max_redirects=1)

    assert response.status_code == 200

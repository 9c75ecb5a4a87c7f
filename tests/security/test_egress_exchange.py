from __future__ import annotations

import gzip

import httpx
import pytest

from tests.security.outside import NAME, answer, exchange
from wopr.process.egress import ResponseTooLarge

pytestmark = pytest.mark.anyio


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
async def test_a_response_above_the_limit_is_refused(reply: bytes) -> None:
    async with exchange(lambda _: reply, limit=100) as (server, client):
        with pytest.raises(ResponseTooLarge):
            await client.get(f"http://{NAME}:{server.port}/")


async def test_a_response_of_exactly_the_limit_is_read() -> None:
    async with exchange(lambda _: answer(b"x" * 100), limit=100) as (server, client):
        response = await client.get(f"http://{NAME}:{server.port}/")

    assert len(response.content) == 100


async def test_a_compressed_response_cannot_unpack_beyond_the_limit() -> None:
    bomb = answer(gzip.compress(bytes(1_000_000)), "Content-Encoding: gzip")

    async with exchange(lambda _: bomb) as (server, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://{NAME}:{server.port}/")

    assert "accept-encoding: identity" in server.heads[0].lower()


async def test_no_cookie_of_one_response_is_sent_with_the_next_request() -> None:
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


async def test_a_host_header_of_the_caller_is_not_sent() -> None:
    async with exchange(lambda _: answer()) as (server, client):
        url = f"http://{NAME}:{server.port}/"
        await client.get(url, headers={"Host": "metadata.google.internal"})

    assert "metadata" not in server.heads[0]


async def test_an_interrupted_response_is_an_httpx_error() -> None:
    async with exchange(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") as (
        server,
        client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://{NAME}:{server.port}/")

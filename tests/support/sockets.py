"""Raw connections to a host for requests that no HTTP client would send."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.support.host import ServedHost
from wopr.protocol.documents import JsonObject

DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class RawResponse:
    """A complete response on a closed connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        document: JsonObject = json.loads(self.body)
        return document


class RawConnection:
    """A TCP connection to a host, from any loopback address."""

    def __init__(self, host: ServedHost, address: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(
            ("127.0.0.1", host.port), timeout=DEADLINE_SECONDS, source_address=(address, 0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes | str) -> Self:
        """Send bytes; a closed connection is noticed when the response is read."""
        with suppress(ConnectionError):
            for part in parts:
                self.socket.sendall(part.encode() if isinstance(part, str) else part)
        return self

    def is_open(self) -> bool:
        """Return whether the host has neither responded nor closed the connection."""
        self.socket.setblocking(False)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            self.socket.settimeout(DEADLINE_SECONDS)
        return False

    def read_to_end(self) -> bytes:
        """Read everything until the host closes the connection."""
        read = b""
        with suppress(ConnectionError):
            while part := self.socket.recv(65536):
                read += part
        return read

    def answer(self) -> RawResponse:
        """Return the one response before the host closes the connection."""
        head, _, body = self.read_to_end().partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return RawResponse(int(status.split(" ")[1]) if status else 0, headers, body)


def request(path: str, *headers: str, method: str = "GET", key: str | None = None) -> str:
    """Return the head of a request."""
    credentials = [] if key is None else [f"Authorization: Bearer {key}"]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *credentials, *headers, "", ""])


def send_until_closed(connection: RawConnection, part: Callable[[int], bytes], most: int) -> bool:
    """Send parts until the host closes the connection; False when it took `most` of them."""
    try:
        for number in range(most):
            connection.socket.sendall(part(number))
    except ConnectionError:
        return True
    return False

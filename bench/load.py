"""The load: a separate process that sends prepared requests and counts the responses.

It uses raw sockets with keep-alive and one active request per client. It reads a job as JSON from
standard input and writes the result as JSON to standard output.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from typing import TypeAlias, cast

import msgspec
import uvloop

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_RUN_ID = re.compile(rb'"runId":"([^"]+)"')
LONGEST_WAIT = 30.0


class Requests(msgspec.Struct, frozen=True, kw_only=True, tag="requests"):
    """Send these requests in rotation until the count or the time is reached."""

    port: int
    clients: int
    requests: list[bytes]
    count: int = 1 << 60
    seconds: float = 1e9
    # The number of run ids to return.
    keep: int = 0
    # Ports of other servers that also get clients.
    more_ports: list[int] = []


class FanOut(msgspec.Struct, frozen=True, kw_only=True, tag="fan-out"):
    """Open a stream many times, then send each trigger and wait until all readers have its text."""

    port: int
    readers: int
    stream: bytes
    # The text that a reader gets when it is subscribed.
    opened: bytes
    triggers: list[bytes]
    # The text that each trigger sends to the readers.
    marks: list[bytes]
    # The server of the triggers, if it is not the server of the readers.
    trigger_port: int | None = None


Job: TypeAlias = Requests | FanOut


class Responses(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `Requests`."""

    count: int
    refused: int
    seconds: float
    cpu_seconds: float
    p50_ms: float
    p99_ms: float
    run_ids: list[str] = []


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `FanOut`: for each trigger, the milliseconds until a reader received it."""

    first_ms: list[float]
    last_ms: list[float]
    cpu_seconds: float


class Generator:
    """The state that the clients of one job share: the next request and the results."""

    def __init__(self, job: Requests) -> None:
        self.requests = job.requests
        self.left = job.count
        self.keep = job.keep
        self.deadline = time.perf_counter() + job.seconds
        self.next = 0
        self.refused = 0
        self.latencies: list[float] = []
        self.run_ids: list[str] = []
        self.active_clients = job.clients
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_request(self) -> bytes | None:
        """Return the next request; None when the job is done."""
        if self.left <= 0 or time.perf_counter() >= self.deadline:
            return None
        self.left -= 1
        self.next += 1
        return self.requests[self.next % len(self.requests)]

    def add_response(self, head: bytes, body: bytes, seconds: float) -> None:
        """Count a response."""
        self.latencies.append(seconds)
        if head[9:10] != b"2":
            self.refused += 1
        if len(self.run_ids) < self.keep:
            found = _RUN_ID.search(body)
            if found is not None:
                self.run_ids.append(found.group(1).decode())

    def remove_client(self) -> None:
        """Count a client that has no more requests."""
        self.active_clients -= 1
        if not self.active_clients and not self.is_over.done():
            self.is_over.set_result(None)


class Client(asyncio.Protocol):
    """One connection. It sends a request when the response to the last one is complete."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the connection."""
        # The transports of uvloop do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        """Send the next request, if there is one."""
        request = self._generator.next_request()
        if request is None or self._transport is None:
            self._generator.remove_client()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Read a response."""
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._buffer, 0, end)
        whole = end + 4 + (int(length.group(1)) if length else 0)
        if len(self._buffer) < whole:
            return
        head, body = self._buffer[:end], self._buffer[end + 4 : whole]
        self._buffer = b""
        self._generator.add_response(head, body, time.perf_counter() - self._sent)
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """End the job with an error, because its figure would be wrong."""
        if not self._generator.is_over.done():
            self._generator.is_over.set_exception(
                RuntimeError(f"the server closed the connection: {error}")
            )


class Reader(asyncio.Protocol):
    """One reader of a stream. It records when each mark arrives."""

    def __init__(self, fan: Fan, stream: bytes) -> None:
        self._fan = fan
        self._stream = stream
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the stream."""
        cast("asyncio.Transport", transport).write(self._stream)

    def data_received(self, data: bytes) -> None:
        """Search for the expected mark."""
        self._seen += data
        if self._fan.mark in self._seen:
            self._seen = b""
            self._fan.add_arrival()


class Fan:
    """Counts the readers that have the mark of the current trigger."""

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self.times: list[float] = []
        self.mark = b""
        self.all_there = asyncio.Event()

    def expect(self, mark: bytes) -> None:
        """Expect another mark."""
        self.mark, self.times = mark, []
        self.all_there = asyncio.Event()

    def add_arrival(self) -> None:
        """Count a reader that has the mark."""
        self.times.append(time.perf_counter())
        if len(self.times) == self._readers:
            self.all_there.set()


def run_job(job: Requests) -> Responses:
    """Run a job of requests in a separate process."""
    return msgspec.json.decode(_in_process(job), type=Responses)


def run_fan_out(job: FanOut) -> Arrivals:
    """Run a fan-out in a separate process."""
    return msgspec.json.decode(_in_process(job), type=Arrivals)


def _in_process(job: Job) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=msgspec.json.encode(job),
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout


async def _requests(job: Requests) -> Responses:
    generator = Generator(job)
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    ports = [job.port, *job.more_ports]
    for number in range(job.clients):
        port = ports[number % len(ports)]
        _, client = await loop.create_connection(lambda: Client(generator), "127.0.0.1", port)
        clients.append(client)
    generator.deadline = time.perf_counter() + job.seconds
    began, cpu = time.perf_counter(), time.process_time()
    for client in clients:
        client.send()
    await generator.is_over
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    ordered = sorted(generator.latencies)
    return Responses(
        count=len(ordered),
        refused=generator.refused,
        seconds=seconds,
        cpu_seconds=cpu,
        p50_ms=1000 * ordered[len(ordered) // 2],
        p99_ms=1000 * ordered[int(len(ordered) * 0.99)],
        run_ids=generator.run_ids,
    )


async def _fan_out(job: FanOut) -> Arrivals:
    fan = Fan(job.readers)
    fan.expect(job.opened)
    loop = asyncio.get_running_loop()
    for _ in range(job.readers):
        await loop.create_connection(lambda: Reader(fan, job.stream), "127.0.0.1", job.port)
    await asyncio.wait_for(fan.all_there.wait(), LONGEST_WAIT)
    port = job.port if job.trigger_port is None else job.trigger_port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    first: list[float] = []
    last: list[float] = []
    cpu = time.process_time()
    for trigger, mark in zip(job.triggers, job.marks, strict=True):
        # Before the next trigger is sent, all readers must be waiting again.
        await asyncio.sleep(0.05)
        fan.expect(mark)
        sent = time.perf_counter()
        writer.write(trigger)
        await asyncio.wait_for(fan.all_there.wait(), LONGEST_WAIT)
        first.append(1000 * (fan.times[0] - sent))
        last.append(1000 * (fan.times[-1] - sent))
    writer.close()
    return Arrivals(first_ms=first, last_ms=last, cpu_seconds=time.process_time() - cpu)


def main() -> None:
    """Run the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Requests | FanOut)
    work = _requests(job) if isinstance(job, Requests) else _fan_out(job)
    result = uvloop.run(work)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()

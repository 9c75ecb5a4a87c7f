"""The load: a process of its own that writes requests made before and counts the answers.

Raw sockets, kept alive, one request under way per client. It reads a job as JSON on standard input
and writes what it saw as JSON to standard output.
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
    """Send these requests round and round until the count or the time is reached."""

    port: int
    clients: int
    requests: list[bytes]
    count: int = 1 << 60
    seconds: float = 1e9
    # How many run ids to bring back.
    keep: int = 0
    # Other servers that the clients are spread over.
    more_ports: list[int] = []


class FanOut(msgspec.Struct, frozen=True, kw_only=True, tag="fan-out"):
    """Open a stream many times, then send each trigger and wait until all readers have its mark."""

    port: int
    readers: int
    stream: bytes
    # What a reader has seen once it is subscribed.
    opened: bytes
    triggers: list[bytes]
    marks: list[bytes]
    # Where the triggers go, if not where the readers are.
    trigger_port: int | None = None


Job: TypeAlias = Requests | FanOut


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What `Requests` gave."""

    answered: int
    refused: int
    seconds: float
    cpu_seconds: float
    p50_ms: float
    p99_ms: float
    run_ids: list[str] = []


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """What `FanOut` gave, per trigger: milliseconds from its sending to a reader's receipt."""

    first_ms: list[float]
    last_ms: list[float]
    cpu_seconds: float


class Generator:
    """Shared by the clients of one job: what to send next, and what came back."""

    def __init__(self, job: Requests) -> None:
        self.requests = job.requests
        self.left = job.count
        self.keep = job.keep
        self.deadline = time.perf_counter() + job.seconds
        self.next = 0
        self.refused = 0
        self.latencies: list[float] = []
        self.run_ids: list[str] = []
        self.under_way = job.clients
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bytes | None:
        """The next request, or None when enough have been sent."""
        if self.left <= 0 or time.perf_counter() >= self.deadline:
            return None
        self.left -= 1
        self.next += 1
        return self.requests[self.next % len(self.requests)]

    def answered(self, head: bytes, body: bytes, seconds: float) -> None:
        """Count an answer."""
        self.latencies.append(seconds)
        if head[9:10] != b"2":
            self.refused += 1
        if len(self.run_ids) < self.keep:
            found = _RUN_ID.search(body)
            if found is not None:
                self.run_ids.append(found.group(1).decode())

    def leave(self) -> None:
        """A client has nothing more to send."""
        self.under_way -= 1
        if not self.under_way and not self.is_over.done():
            self.is_over.set_result(None)


class Client(asyncio.Protocol):
    """One connection that sends a request when the answer to the last one is complete."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection; `send` begins."""
        # The loop's own transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        """Send the next request, or leave."""
        request = self._generator.take()
        if request is None or self._transport is None:
            self._generator.leave()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Take in an answer."""
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
        self._generator.answered(head, body, time.perf_counter() - self._sent)
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """A server that hangs up ends the job: its figure would be wrong."""
        if not self._generator.is_over.done():
            self._generator.is_over.set_exception(RuntimeError(f"the server hung up: {error}"))


class Reader(asyncio.Protocol):
    """One reader of a stream, which notes when each mark arrives."""

    def __init__(self, fan: Fan, stream: bytes) -> None:
        self._fan = fan
        self._stream = stream
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        cast("asyncio.Transport", transport).write(self._stream)

    def data_received(self, data: bytes) -> None:
        """Look for the mark that is due."""
        self._seen += data
        if self._fan.mark in self._seen:
            self._seen = b""
            self._fan.arrived()


class Fan:
    """Counts the readers that have the mark of the present trigger."""

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self.times: list[float] = []
        self.mark = b""
        self.all_there = asyncio.Event()

    def expect(self, mark: bytes) -> None:
        """Wait for another mark."""
        self.mark, self.times = mark, []
        self.all_there = asyncio.Event()

    def arrived(self) -> None:
        """One more reader has it."""
        self.times.append(time.perf_counter())
        if len(self.times) == self._readers:
            self.all_there.set()


def run_job(job: Requests) -> Answers:
    """Run a job of requests in a process of its own."""
    return msgspec.json.decode(_in_process(job), type=Answers)


def run_fan_out(job: FanOut) -> Arrivals:
    """Run a fan-out in a process of its own."""
    return msgspec.json.decode(_in_process(job), type=Arrivals)


def _in_process(job: Job) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=msgspec.json.encode(job),
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout


async def _requests(job: Requests) -> Answers:
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
    return Answers(
        answered=len(ordered),
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
        # The readers must be waiting again, not still being served, when the next one is sent.
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
    """Carry out the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Requests | FanOut)
    work = _requests(job) if isinstance(job, Requests) else _fan_out(job)
    result = uvloop.run(work)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()

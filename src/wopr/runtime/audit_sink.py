"""The external audit sink: every entry of the audit log, copied to a file or sent to a webhook.

The sink takes lines: each entry in its canonical form, in the order of the chain, and each checkpoint
after the entries that it covers. The store keeps how far the sink has come. The position moves
after the sink has taken the lines, so a crash repeats lines and never skips any.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
import msgspec
import structlog

from wopr.protocol.documents import encode
from wopr.protocol.errors import Refused, WoprError
from wopr.runtime.courier import Courier, named_headers
from wopr.runtime.metrics import Metrics
from wopr.runtime.settings import Settings
from wopr.security.ssrf import DestinationDenied, check_url
from wopr.security.webhook_signature import ALGORITHM, signature
from wopr.store.port import Store
from wopr.store.port.audit import AuditRow, CheckpointRow, SinkPosition

FILE_SCHEME: Final = "file"
NDJSON: Final = "application/x-ndjson"
EVENT_TYPE: Final = "audit.entries"
WEBHOOK_ID: Final = "audit-sink"
# How often the log's length is looked at, and the longest pause after failures.
LOOK_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 60.0
# How long a process that stops goes on copying.
FINISH_SECONDS: Final = 5.0
BATCH_ENTRIES: Final = 500
BATCH_BYTES: Final = 256 * 1024
# The last line of an entry is looked for in so many bytes at the end of the file.
_TAIL_BYTES: Final = 1024 * 1024

log = structlog.get_logger("wopr.audit")


class SinkFault(Exception):
    """The sink did not take the lines. The message says why, without the URL."""


class Sink(Protocol):
    """Takes lines, in order."""

    async def resume(self, position: SinkPosition) -> bytes | None:
        """The last entry that the sink itself can show; None when it cannot show any."""
        ...

    async def take(self, lines: Sequence[bytes]) -> None:
        """Take these lines durably. Raises `SinkFault` when the sink cannot."""
        ...


class CheckpointLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A checkpoint as a line; `peaks` is in hexadecimal."""

    at_sequence: int
    merkle_root: str
    signature: str
    public_key: str
    peaks: str

    def row(self) -> CheckpointRow:
        """The checkpoint as the store has it. Raises `ValueError` for peaks that are not hexadecimal."""
        return CheckpointRow(
            at_sequence=self.at_sequence,
            merkle_root=self.merkle_root,
            signature=self.signature,
            public_key=self.public_key,
            peaks=bytes.fromhex(self.peaks),
        )


def checkpoint_line(row: CheckpointRow) -> bytes:
    """A checkpoint as a line of a sink."""
    return encode(
        CheckpointLine(
            at_sequence=row.at_sequence,
            merkle_root=row.merkle_root,
            signature=row.signature,
            public_key=row.public_key,
            peaks=row.peaks.hex(),
        )
    )


class FileSink:
    """Appends lines to a file that its owner alone can read.

    The file is opened for each batch, so a program that rotates logs may rename it at any time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def resume(self, position: SinkPosition) -> bytes | None:
        """The last entry in the file; a line that a crash cut off is removed first."""
        try:
            return await anyio.to_thread.run_sync(self._repair)
        except OSError as fault:
            raise SinkFault(f"the file cannot be read: {fault.strerror}") from fault

    async def take(self, lines: Sequence[bytes]) -> None:
        """Append the lines and wait until they are on disk."""
        try:
            await anyio.to_thread.run_sync(self._append, b"".join(line + b"\n" for line in lines))
        except OSError as fault:
            raise SinkFault(f"the file cannot be written: {fault.strerror}") from fault

    def _repair(self) -> bytes | None:
        if not self._path.exists():
            return None
        with self._path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            tail = file.read()
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail):
                if not whole and start:
                    raise OSError(0, "its end is not a line of an audit log")
                file.truncate(start + whole)
                os.fsync(file.fileno())
        lines = tail[:whole].splitlines()
        return next((line for line in reversed(lines) if sequence_of(line) is not None), None)

    def _append(self, text: bytes) -> None:
        is_new = not self._path.exists()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            written = 0
            while written < len(text):
                written += file.write(text[written:])
            os.fsync(file.fileno())
        if is_new:
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


class WebhookSink:
    """Posts lines to a URL, signed in the same way as webhooks are."""

    def __init__(self, courier: Courier, url: str, secret: str, now: Callable[[], int]) -> None:
        self._courier = courier
        self._url = url
        self._secret = secret
        self._now = now

    async def resume(self, position: SinkPosition) -> bytes | None:
        """A receiver is not asked what it has."""
        return None

    async def take(self, lines: Sequence[bytes]) -> None:
        """Post the lines as one body. Any 2xx answer means that the receiver has them."""
        body = b"".join(line + b"\n" for line in lines)
        timestamp = self._now() // 1000
        headers = {"Content-Type": NDJSON} | named_headers(
            {
                "Webhook-Id": WEBHOOK_ID,
                "Event-Type": EVENT_TYPE,
                "Timestamp": str(timestamp),
                "Signature": signature(self._secret, timestamp, body),
                "Signature-Algorithm": ALGORITHM,
            }
        )
        fault = await self._courier.post("", self._url, headers, body)
        if fault is not None:
            raise SinkFault(fault)


class AuditSink:
    """Copies the audit log to a sink for as long as this process has that duty."""

    def __init__(self, store: Store, name: str, sink: Sink, metrics: Metrics) -> None:
        self._store = store
        self._name = name
        self._sink = sink
        self._metrics = metrics
        self._position: SinkPosition | None = None

    async def run_forever(self) -> None:
        """Copy what is new, until cancelled. A sink that fails is tried again after a pause."""
        pause = LOOK_SECONDS
        # Another process may have had the duty before.
        self._position = None
        try:
            while True:
                try:
                    while await self._copy():
                        pass
                    pause = LOOK_SECONDS
                except (SinkFault, WoprError) as fault:
                    # After a failed write the end of a file is not known.
                    self._position = None
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                    self._metrics.audit_sink_failed()
                    log.error(
                        "the audit sink did not take entries",
                        reason=str(fault),
                        retry_seconds=pause,
                    )
                await anyio.sleep(pause)
        finally:
            self._metrics.audit_sink_behind.set(0)

    async def finish(self) -> None:
        """Copy what is left before the process stops. What cannot be copied is left for the next."""
        self._position = None
        with anyio.move_on_after(FINISH_SECONDS), suppress(SinkFault, WoprError):
            while await self._copy():
                pass

    async def _copy(self) -> bool:
        """Copy one batch; False when the sink has everything."""
        if await self._is_complete():
            return False
        async with self._alone():
            position = await self._found_position()
            behind = await self._store.audit_head() - position.sequence
            self._metrics.audit_sink_behind.set(max(0, behind))
            entries = await self._next_entries(position)
            last = entries[-1].sequence if entries else position.sequence
            checkpoints = await self._store.checkpoints(position.checkpoint + 1, last)
            if entries or checkpoints:
                lines = [row.body for row in entries]
                await self._sink.take([*lines, *map(checkpoint_line, checkpoints)])
                signed = checkpoints[-1].at_sequence if checkpoints else position.checkpoint
                position = SinkPosition(last, signed)
                await self._store.put_sink_position(self._name, position)
            self._position = position
        return not await self._is_complete() and bool(entries or checkpoints)

    async def _is_complete(self) -> bool:
        head = await self._store.audit_head()
        if self._position is None:
            return False
        self._metrics.audit_sink_behind.set(max(0, head - self._position.sequence))
        signed = await self._store.signed_head()
        return head <= self._position.sequence and signed <= self._position.checkpoint

    def _alone(self) -> AbstractAsyncContextManager[None]:
        """Keep other processes out: one that lost the duty may not know it yet."""
        peers = self._store.peers
        return nullcontext() if peers is None else peers.alone("audit sink")

    async def _found_position(self) -> SinkPosition:
        """The position that the store has, or a later one that the sink itself can show."""
        kept = await self._store.sink_position(self._name)
        if self._position is not None and self._position.sequence >= kept.sequence:
            return self._position
        shown = await self._sink.resume(kept)
        sequence = None if shown is None else sequence_of(shown)
        if shown is None or sequence is None or sequence <= kept.sequence:
            return kept
        rows = await self._store.audit_entries(sequence, 1)
        if not rows or rows[0].sequence != sequence or rows[0].body != shown:
            raise SinkFault("the file holds entries of another audit log: name another file")
        return SinkPosition(sequence, kept.checkpoint)

    async def _next_entries(self, position: SinkPosition) -> list[AuditRow]:
        rows = await self._store.audit_entries(position.sequence + 1, BATCH_ENTRIES)
        size = 0
        for count, row in enumerate(rows):
            size += len(row.body)
            if count and size > BATCH_BYTES:
                return rows[:count]
        return rows


def sequence_of(line: bytes) -> int | None:
    """The sequence of an entry; None for a line that is not one."""
    try:
        return msgspec.json.decode(line, type=_EntryLine).sequence
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _EntryLine(msgspec.Struct):
    sequence: int


def sink_name(url: str) -> str:
    """What the store calls a sink. The URL may hold a token, so it is not kept."""
    return hashlib.sha256(url.encode()).hexdigest()


def sink_file(url: str) -> Path | None:
    """The file that a setting names; None for a webhook."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == FILE_SCHEME else None


def audit_sink(
    settings: Settings, store: Store, courier: Courier, metrics: Metrics, now: Callable[[], int]
) -> AuditSink | None:
    """The sink of the settings; None without one. Raises `Refused` for one that cannot work."""
    url = settings.audit_sink
    if not url:
        return None
    return AuditSink(store, sink_name(url), _sink(settings, courier, now), metrics)


def _sink(settings: Settings, courier: Courier, now: Callable[[], int]) -> Sink:
    file = sink_file(settings.audit_sink)
    if file is not None:
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise Refused(
                f"audit_sink: the directory {file.parent} is missing or not writable",
                field="audit_sink",
            )
        return FileSink(file)
    try:
        check_url(settings.audit_sink, allow_private=settings.allow_private_destinations)
    except DestinationDenied as denied:
        raise Refused(f"audit_sink: {denied.reason}", field="audit_sink") from denied
    return WebhookSink(courier, settings.audit_sink, settings.audit_sink_secret, now)

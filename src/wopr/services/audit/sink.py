"""The audit sink: copies every entry of the audit log to a file or a webhook.

A sink receives lines: each entry in its canonical form, in the order of the chain, and each
checkpoint after the entries that it covers. The store records the position of the sink after the
sink has accepted the lines, so a crash can repeat lines and never skips any.
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

from wopr.process.background import BackgroundTask
from wopr.process.keys import sync_directory
from wopr.process.metrics import Metrics
from wopr.process.settings import Settings
from wopr.protocol.documents import encode
from wopr.protocol.errors import Refused, Unavailable, WoprError
from wopr.security.ssrf import DestinationDenied, check_url
from wopr.security.tokens import WEBHOOK_SIGNATURE_VERSION, webhook_signature
from wopr.services.webhooks.delivery import WebhookClient, named_headers
from wopr.store.port import Store
from wopr.store.port.audit import AuditRow, CheckpointRow, SinkPosition

FILE_SCHEME: Final = "file"
NDJSON: Final = "application/x-ndjson"
EVENT_TYPE: Final = "audit.entries"
WEBHOOK_ID: Final = "audit-sink"
# How often the length of the log is checked, and the longest pause after failures.
CHECK_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 60.0
# How long a process that stops continues to copy.
FINISH_SECONDS: Final = 5.0
BATCH_ENTRIES: Final = 500
BATCH_BYTES: Final = 256 * 1024
# The number of bytes at the end of the file that are searched for the last entry.
_TAIL_BYTES: Final = 1024 * 1024


class SinkFault(Unavailable):
    """The sink did not accept the lines. The message gives the reason, without the URL."""


class Sink(Protocol):
    """Accepts lines, in order."""

    async def last_entry(self) -> bytes | None:
        """Return the last entry in the sink; None when it cannot be read."""
        ...

    async def write(self, lines: Sequence[bytes]) -> None:
        """Store these lines durably. Raises `SinkFault` when that fails."""
        ...


class CheckpointLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A checkpoint as a line; `peaks` is in hexadecimal."""

    at_sequence: int
    merkle_root: str
    signature: str
    public_key: str
    peaks: str

    def row(self) -> CheckpointRow:
        """Return the stored form. Raises `ValueError` for peaks that are not hexadecimal."""
        return CheckpointRow(
            at_sequence=self.at_sequence,
            merkle_root=self.merkle_root,
            signature=self.signature,
            public_key=self.public_key,
            peaks=bytes.fromhex(self.peaks),
        )


def checkpoint_line(row: CheckpointRow) -> bytes:
    """Encode a checkpoint as a line of a sink."""
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
    """Appends lines to a file that only its owner can read.

    The file is opened for each batch, so log rotation may rename it at any time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def last_entry(self) -> bytes | None:
        """Return the last entry in the file. A line that a crash cut off is removed first."""
        try:
            return await anyio.to_thread.run_sync(self._repair)
        except OSError as fault:
            raise SinkFault(f"the file cannot be read: {fault.strerror}") from fault

    async def write(self, lines: Sequence[bytes]) -> None:
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
            sync_directory(self._path.parent)


class WebhookSink:
    """Posts lines to a URL, signed in the same way as webhooks are."""

    def __init__(
        self, client: WebhookClient, url: str, secret: str, now: Callable[[], int]
    ) -> None:
        self._client = client
        self._url = url
        self._secret = secret
        self._now = now

    async def last_entry(self) -> bytes | None:
        """Return None: the last entry of a webhook cannot be read."""
        return None

    async def write(self, lines: Sequence[bytes]) -> None:
        """Post the lines as one body. Any 2xx response means that the receiver has stored them."""
        body = b"".join(line + b"\n" for line in lines)
        timestamp = self._now() // 1000
        headers = {"Content-Type": NDJSON} | named_headers(
            {
                "Webhook-Id": WEBHOOK_ID,
                "Event-Type": EVENT_TYPE,
                "Timestamp": str(timestamp),
                "Signature": webhook_signature(self._secret, timestamp, body),
                "Signature-Algorithm": WEBHOOK_SIGNATURE_VERSION,
            }
        )
        fault = await self._client.post("", self._url, headers, body)
        if fault is not None:
            raise SinkFault(fault)


class AuditSink:
    """Copies the audit log to a sink while this process is the leader."""

    def __init__(self, store: Store, name: str, sink: Sink, metrics: Metrics) -> None:
        self._store = store
        self._name = name
        self._sink = sink
        self._metrics = metrics
        self._position: SinkPosition | None = None
        self._task = BackgroundTask(
            "audit sink",
            self._copy_new,
            period=CHECK_SECONDS,
            max_retry_seconds=MAX_RETRY_SECONDS,
        )

    async def run(self) -> None:
        """Copy new entries until cancelled."""
        # Another process may have been the leader before.
        self._position = None
        try:
            await self._task.run()
        finally:
            self._metrics.audit_sink_behind.set(0)

    async def _copy_new(self) -> None:
        try:
            while await self._copy():
                pass
        except WoprError:
            # After a failed write the end of the file is unknown.
            self._position = None
            self._metrics.count_audit_sink_failure()
            raise

    async def finish(self) -> None:
        """Copy the remaining entries before the process stops, as far as that is possible."""
        self._position = None
        with anyio.move_on_after(FINISH_SECONDS), suppress(WoprError):
            while await self._copy():
                pass

    async def _copy(self) -> bool:
        """Copy one batch; return False when the sink is complete."""
        if await self._is_complete():
            return False
        async with self._exclusive():
            position = await self._current_position()
            behind = await self._store.audit_head() - position.sequence
            self._metrics.audit_sink_behind.set(max(0, behind))
            entries = await self._next_entries(position)
            last = entries[-1].sequence if entries else position.sequence
            checkpoints = await self._store.checkpoints(position.checkpoint + 1, last)
            if entries or checkpoints:
                lines = [row.body for row in entries]
                await self._sink.write([*lines, *map(checkpoint_line, checkpoints)])
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

    def _exclusive(self) -> AbstractAsyncContextManager[None]:
        """Exclude other processes: a former leader may not know yet that it is not the leader."""
        peers = self._store.peers
        return nullcontext() if peers is None else peers.exclusive("audit sink")

    async def _current_position(self) -> SinkPosition:
        """Return the stored position, or a later position from the last entry in the sink."""
        stored = await self._store.sink_position(self._name)
        if self._position is not None and self._position.sequence >= stored.sequence:
            return self._position
        last_line = await self._sink.last_entry()
        sequence = None if last_line is None else sequence_of(last_line)
        if last_line is None or sequence is None or sequence <= stored.sequence:
            return stored
        rows = await self._store.audit_entries(sequence, 1)
        if not rows or rows[0].sequence != sequence or rows[0].body != last_line:
            raise SinkFault(
                "The file has entries of another audit log. Set audit_sink to another file."
            )
        return SinkPosition(sequence, stored.checkpoint)

    async def _next_entries(self, position: SinkPosition) -> list[AuditRow]:
        rows = await self._store.audit_entries(position.sequence + 1, BATCH_ENTRIES)
        size = 0
        for count, row in enumerate(rows):
            size += len(row.body)
            if count and size > BATCH_BYTES:
                return rows[:count]
        return rows


def sequence_of(line: bytes) -> int | None:
    """Return the sequence of an entry; None for any other line."""
    try:
        return msgspec.json.decode(line, type=_EntryLine).sequence
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _EntryLine(msgspec.Struct):
    sequence: int


def sink_name(url: str) -> str:
    """Return the stored name of a sink: a digest, because the URL may contain a token."""
    return hashlib.sha256(url.encode()).hexdigest()


def sink_file(url: str) -> Path | None:
    """Return the file that a setting names; None for a webhook."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == FILE_SCHEME else None


def create_audit_sink(
    settings: Settings,
    store: Store,
    client: WebhookClient,
    metrics: Metrics,
    now: Callable[[], int],
) -> AuditSink | None:
    """Return the sink of the settings, or None. Raises `Refused` for an invalid setting."""
    url = settings.audit_sink
    if not url:
        return None
    return AuditSink(store, sink_name(url), _sink(settings, client, now), metrics)


def _sink(settings: Settings, client: WebhookClient, now: Callable[[], int]) -> Sink:
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
    return WebhookSink(client, settings.audit_sink, settings.audit_sink_secret, now)

"""Upload of KAHN lines: find logs, join lines to chunks, and send them with retries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from wopr.api.errors import HostError
from wopr.cli.errors import CliError, ExitCode
from wopr.protocol.documents import JsonObject, list_of, object_of

if TYPE_CHECKING:
    from wopr.api.client import Client


# The largest body, unless the server names another limit.
MAX_BODY_BYTES: Final = 1_048_576
_LOGS: Final = ("*.jsonl", "*.ndjson")
# The pause before a retry. It doubles after every attempt.
MIN_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 60.0
TOO_LARGE: Final = "payload_too_large"
WOULD_REWRITE: Final = "would_rewrite"
_REFUSALS: Final = frozenset({"validation_error", WOULD_REWRITE})


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line without its newline, with its file and its number from 1.

    `graph` is the graph of the run, if this is the first line of the run.
    """

    path: Path
    number: int
    raw: bytes
    graph: bytes = b""

    @property
    def body(self) -> bytes:
        """The line to send, including the graph."""
        if not self.graph:
            return self.raw
        return b'%b,"graph":%b}' % (self.raw.rstrip().removesuffix(b"}"), self.graph)


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that the server refused, and the reason."""

    path: Path
    line: int
    message: str

    def document(self) -> JsonObject:
        """Return the refused line for `--json`."""
        return {"file": str(self.path), "line": self.line, "message": self.message}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines that are sent together."""

    lines: tuple[SourceLine, ...]

    @property
    def body(self) -> bytes:
        """The body to send."""
        return b"\n".join([*(line.body for line in self.lines), b""])

    def without(self, left_out: Collection[Path]) -> Chunk:
        """Return the chunk without the lines of some files."""
        return Chunk(tuple(line for line in self.lines if line.path not in left_out))

    def without_graphs(self, files: Collection[Path]) -> Chunk:
        """Return the chunk without the graphs of some files."""
        return Chunk(
            tuple(replace(each, graph=b"") if each.path in files else each for each in self.lines)
        )

    def halves(self) -> tuple[Chunk, Chunk]:
        """Return the chunk in two parts."""
        middle = len(self.lines) // 2
        return Chunk(self.lines[:middle]), Chunk(self.lines[middle:])


def find_logs(path: Path) -> list[Path]:
    """Return the logs of a file, an archive or a folder."""
    from wopr.kahn.archive import LOG_NAME, RUNS_NAME

    if path.is_file():
        return [path]
    if not path.is_dir():
        message = f"{path} is neither a file nor a folder"
        raise CliError(message, ExitCode.USAGE, code="validation_error")
    if (path / RUNS_NAME).is_dir():
        return sorted((path / RUNS_NAME).glob(f"*/{LOG_NAME}"))
    return sorted(log for pattern in _LOGS for log in path.rglob(pattern))


def split_into_chunks(lines: Iterable[SourceLine], max_body_bytes: int) -> Iterator[Chunk]:
    """Join lines to chunks up to the largest size, in order."""
    collected: list[SourceLine] = []
    size = 0
    for line in lines:
        length = len(line.body) + 1
        if collected and size + length > max_body_bytes:
            yield Chunk(tuple(collected))
            collected, size = [], 0
        collected.append(line)
        size += length
    if collected:
        yield Chunk(tuple(collected))


def add_graphs(
    lines: Iterable[SourceLine], max_body_bytes: int, notify: Callable[[str], None]
) -> Iterator[SourceLine]:
    """Add the graph in the folder of a log to the first line of the run.

    The line is unchanged if it already has a graph, or if it would become too long. `notify`
    reports a graph that cannot be read.
    """
    for line in lines:
        # A fast check first, because few lines start a run.
        if b'"run_start"' not in line.raw or not _begins_run(line.raw):
            yield line
            continue
        line_with_graph = replace(line, graph=_graph(line.path, notify))
        yield line_with_graph if len(line_with_graph.body) < max_body_bytes else line


def _begins_run(raw: bytes) -> bool:
    """Return whether a line starts a run and has no graph."""
    from wopr.kahn.events import RunStart
    from wopr.kahn.lines import BadLine, read_line

    try:
        line = read_line(raw)
    except BadLine:
        return False
    return isinstance(line.event, RunStart) and "graph" not in line.fields


def _graph(log: Path, notify: Callable[[str], None]) -> bytes:
    """Return the graph in the folder of a log; empty if there is none or it cannot be read."""
    import msgspec

    from wopr.kahn.archive import GRAPH_NAME, LOG_NAME

    path = log.with_name(GRAPH_NAME)
    if log.name != LOG_NAME or not path.is_file():
        return b""
    try:
        document = path.read_bytes()
        msgspec.json.decode(document, type=JsonObject)
    except (OSError, UnicodeError, msgspec.MsgspecError) as fault:
        notify(f"{path}: not sent, because it cannot be read: {fault}")
        return b""
    return msgspec.json.format(document, indent=-1)


@dataclass(slots=True)
class UploadResult:
    """The result of an upload."""

    accepted: int = 0
    duplicate: int = 0
    runs: set[str] = field(default_factory=set[str])
    faults: list[RefusedLine] = field(default_factory=list[RefusedLine])
    # Pushed runs that the server deletes soon, and when.
    expiring: dict[str, str] = field(default_factory=dict[str, str])

    def summary(self) -> str:
        """Return the numbers of accepted lines, known lines and runs as text."""
        return (
            f"{self.accepted} lines accepted, {self.duplicate} known already, {len(self.runs)} runs"
        )

    def warning(self) -> str:
        """Return a warning about runs that the server deletes soon, or an empty text."""
        if not self.expiring:
            return ""
        soonest = min(self.expiring, key=lambda run_id: self.expiring[run_id])
        return (
            f"{len(self.expiring)} pushed runs are deleted within 7 days, {soonest} first, at "
            f"{self.expiring[soonest]}: push or export them to keep them"
        )

    def document(self) -> JsonObject:
        """Return the report for `--json`."""
        return {
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "runs": len(self.runs),
            "errors": [fault.document() for fault in self.faults],
            "expiring": self.expiring,
        }


class ChunkRefused(Exception):
    """The server refused a chunk because of these lines."""

    def __init__(self, code: str, faults: list[RefusedLine]) -> None:
        super().__init__(code)
        self.code = code
        self.faults = faults


class Uploader:
    """Sends chunks one after another, each until it is accepted or refused.

    `patience` is how many seconds to retry. `notify` reports every retry.
    """

    def __init__(
        self,
        client: Client,
        *,
        patience: float,
        notify: Callable[[str], None],
        random: Random | None = None,
    ) -> None:
        import anyio

        self.result = UploadResult()
        self._client = client
        self._patience = patience
        self._notify = notify
        self._random = random or Random()
        self._request_lock = anyio.Lock()

    async def wait_for_response(self) -> None:
        """Wait for the response to the current request, if there is one."""
        async with self._request_lock:
            pass

    async def max_body_bytes(self) -> int:
        """Read the largest body size from the discovery document."""
        discovery, _ = await self._client.discovery()
        limit: object = object_of(discovery.document.get("kahn")).get("maxBodyBytes")
        return limit if isinstance(limit, int) and limit > 0 else MAX_BODY_BYTES

    async def send(self, chunk: Chunk) -> None:
        """Send a chunk. Raises `ChunkRefused`, or `HostError` if the error is not transient."""
        if not chunk.lines:
            return
        try:
            response = await self._send_with_retries(chunk.body)
        except HostError as error:
            if error.code == TOO_LARGE and len(chunk.lines) > 1:
                for half in chunk.halves():
                    await self.send(half)
                return
            refused = _refusal(chunk, error)
            without_graphs = _without_refused_graphs(chunk, refused)
            if without_graphs == chunk:
                raise refused from error
            await self.send(without_graphs)
            return
        self.result.accepted += int(response["accepted"])
        self.result.duplicate += int(response["duplicate"])
        self.result.runs.update(str(run) for run in list_of(response.get("runs")))
        for each in map(object_of, list_of(response.get("expiring"))):
            self.result.expiring[str(each["run_id"])] = str(each["drops_at"])

    async def _send_with_retries(self, body: bytes) -> JsonObject:
        import anyio

        pause, waited = MIN_PAUSE_SECONDS, 0.0
        while True:
            try:
                async with self._request_lock:
                    return (await self._client.ingest(body)).document
            except HostError as error:
                wait = self._wait(error, pause)
                if not error.is_transient or waited + wait > self._patience:
                    raise
                self._notify(f"{error.message}; retry in {wait:.1f} s")
            await anyio.sleep(wait)
            waited += wait
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def _wait(self, error: HostError, pause: float) -> float:
        """Return how long to wait: the server's `Retry-After`, else the pause with jitter."""
        if error.retry_after is not None:
            return error.retry_after
        return pause * self._random.uniform(0.5, 1.0)


def files_of(faults: list[RefusedLine]) -> set[Path]:
    """Return the files that contain refused lines."""
    return {fault.path for fault in faults}


def _without_refused_graphs(chunk: Chunk, refused: Exception) -> Chunk:
    """Return the chunk without graphs that may be the reason of a refusal."""
    if not isinstance(refused, ChunkRefused) or refused.code != WOULD_REWRITE:
        return chunk
    return chunk.without_graphs(files_of(refused.faults))


def _refusal(chunk: Chunk, error: HostError) -> Exception:
    """Return a refusal with the files and numbers of its lines; any other error unchanged."""
    if error.code == TOO_LARGE:
        line = chunk.lines[0]
        return ChunkRefused(error.code, [RefusedLine(line.path, line.number, error.message)])
    named = [object_of(entry) for entry in list_of(error.details.get("errors"))]
    faults = [
        RefusedLine(
            chunk.lines[at - 1].path, chunk.lines[at - 1].number, str(entry.get("message", ""))
        )
        for entry in named
        if isinstance(at := entry.get("line"), int) and 1 <= at <= len(chunk.lines)
    ]
    if error.code in _REFUSALS and faults:
        return ChunkRefused(error.code, faults)
    return error

"""Lines of KAHN logs on their way to a server: where they stand, and how many go together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode
from wopr.protocol.documents import JsonObject

# What a server takes at once unless it says otherwise.
MOST_BYTES: Final = 1_048_576
_LOGS: Final = ("*.jsonl", "*.ndjson")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line without its newline, and where it stands; lines are counted from 1.

    `graph` is the document of the graph whose run the line begins, if it is sent along.
    """

    path: Path
    number: int
    raw: bytes
    graph: bytes = b""

    @property
    def sent(self) -> bytes:
        """The line as it is sent."""
        if not self.graph:
            return self.raw
        return b'%b,"graph":%b}' % (self.raw.rstrip().removesuffix(b"}"), self.graph)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a line was not taken."""

    path: Path
    line: int
    message: str

    def document(self) -> JsonObject:
        """The fault as `--json` shows it."""
        return {"file": str(self.path), "line": self.line, "message": self.message}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines that are sent together."""

    lines: tuple[SourceLine, ...]

    @property
    def body(self) -> bytes:
        """The lines as they are sent."""
        return b"\n".join([*(line.sent for line in self.lines), b""])

    def without(self, left_out: Collection[Path]) -> Chunk:
        """The same without the lines of some files."""
        return Chunk(tuple(line for line in self.lines if line.path not in left_out))

    def without_graphs(self, of: Collection[Path]) -> Chunk:
        """The same, and the graphs of some files are not sent along."""
        return Chunk(
            tuple(replace(each, graph=b"") if each.path in of else each for each in self.lines)
        )

    def halves(self) -> tuple[Chunk, Chunk]:
        """The same in two parts."""
        middle = len(self.lines) // 2
        return Chunk(self.lines[:middle]), Chunk(self.lines[middle:])


def find_logs(place: Path) -> list[Path]:
    """The logs of a file, an archive, or any folder that holds logs."""
    from wopr.fleet.archive import LOG_NAME, RUNS_NAME

    if place.is_file():
        return [place]
    if not place.is_dir():
        message = f"{place} is neither a file nor a folder"
        raise CliError(message, ExitCode.USAGE, code="validation_error")
    if (place / RUNS_NAME).is_dir():
        return sorted((place / RUNS_NAME).glob(f"*/{LOG_NAME}"))
    return sorted(path for pattern in _LOGS for path in place.rglob(pattern))


def chunked(lines: Iterable[SourceLine], most_bytes: int) -> Iterator[Chunk]:
    """Put lines together, in their order, up to the size that a server takes."""
    kept: list[SourceLine] = []
    size = 0
    for line in lines:
        length = len(line.sent) + 1
        if kept and size + length > most_bytes:
            yield Chunk(tuple(kept))
            kept, size = [], 0
        kept.append(line)
        size += length
    if kept:
        yield Chunk(tuple(kept))

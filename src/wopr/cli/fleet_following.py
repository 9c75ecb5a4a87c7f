"""Follow one growing log: whole lines only, over truncation and rotation."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO, Final

from wopr.cli.fleet_lines import SourceLine

READ_AT_ONCE: Final = 1_048_576
# A log that has not grown for so long is closed: an archive has more of them than files can be open.
IDLE_SECONDS: Final = 60.0
# So much of a log's beginning tells whether it is still the same one.
_HEAD_BYTES: Final = 256


class Follower:
    """Reads what is appended to a log, from its beginning on.

    A log that has become shorter, or begins otherwise, is read from its beginning again: lines that
    the server has already are not stored twice. One that was moved away is read to its end before
    the log in its place is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._grew_at = 0.0
        self._forget()

    @property
    def is_gone(self) -> bool:
        """Whether there is nothing left to read and no log any more."""
        return self._file is None and not self.path.exists()

    def poll(self) -> list[SourceLine]:
        """The whole lines that came since the last time, or some of them."""
        file = self._opened()
        if file is None:
            return []
        if self._is_another(file):
            self._forget()
        file.seek(self._offset)
        grown = file.read(READ_AT_ONCE)
        if grown:
            return self._taken(file, grown)
        return self._at_its_end(file)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget(self) -> None:
        self._offset = 0
        self._number = 0
        self._head = b""
        self._torn = b""

    def _opened(self) -> BinaryIO | None:
        if self._file is not None:
            return self._file
        try:
            if self._offset and self.path.stat().st_size == self._offset:
                return None
            self._file = self.path.open("rb")
        except OSError:
            return None
        self._grew_at = time.monotonic()
        return self._file

    def _is_another(self, file: BinaryIO) -> bool:
        """Whether the log was cut, or written anew, since it was read."""
        if os.fstat(file.fileno()).st_size < self._offset:
            return True
        file.seek(0)
        return file.read(len(self._head)) != self._head

    def _taken(self, file: BinaryIO, grown: bytes) -> list[SourceLine]:
        self._grew_at = time.monotonic()
        self._offset += len(grown)
        if len(self._head) < _HEAD_BYTES:
            file.seek(0)
            self._head = file.read(min(_HEAD_BYTES, self._offset))
        *whole, self._torn = (self._torn + grown).split(b"\n")
        return self._numbered(whole)

    def _numbered(self, whole: list[bytes]) -> list[SourceLine]:
        first = self._number + 1
        self._number += len(whole)
        return [
            SourceLine(self.path, number, raw)
            for number, raw in enumerate(whole, first)
            if raw.strip()
        ]

    def _at_its_end(self, file: BinaryIO) -> list[SourceLine]:
        """Nothing came: let go of a log that is idle or that another one has replaced."""
        if self._was_moved(file):
            torn = [self._torn] if self._torn else []
            lines = self._numbered(torn)
            self.close()
            self._forget()
            return lines
        if time.monotonic() - self._grew_at > IDLE_SECONDS:
            self.close()
        return []

    def _was_moved(self, file: BinaryIO) -> bool:
        try:
            found = self.path.stat()
        except OSError:
            return True
        held = os.fstat(file.fileno())
        return (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino)

"""Fenced blocks of a document: code to run, and commands with their output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ANYTHING = "…"
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# Parts that differ between two runs of a command, with their patterns. The port of a document
# is the free one.
_VARYING_PATTERNS = {
    "anything": r".*",
    "port": r":\d+",
    "instant": r"\d{4}-\d\d-\d\dT[\d:.]+Z",
    "offset": r"\+\d+\.\d+s",
    "duration": r"in \d+\.\d+s",
}
_VARYING = re.compile(
    rf"(?P<id>{_ID})|(?P<anything>…)|(?P<port>:8642\b)|"
    + "|".join(
        f"(?P<{name}>{_VARYING_PATTERNS[name]})" for name in ("instant", "offset", "duration")
    )
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the word after it, its text, and its line."""

    language: str
    word: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A typed command and its expected output."""

    line: str
    printed: tuple[str, ...]


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text()
    for found in _FENCE.finditer(text):
        language, _, word = found["info"].partition(" ")
        yield Block(language, word, found["text"], text.count("\n", 0, found.start()) + 2)


def commands(block: Block) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, *printed = part.rstrip("\n").split("\n")
        yield Command(line, tuple(printed))


def matches(printed: tuple[str, ...], output: str, ids: dict[str, str] | None = None) -> bool:
    """Return whether an output is the one in the document.

    An ellipsis stands for any text. Times and durations may differ. An id of the document
    stands for the id of this output; `ids` stores it for later commands and outputs.
    """
    known = {} if ids is None else ids
    names: dict[str, str] = {}
    pattern = "".join(_pattern(line, known, names) for line in printed)
    lines = [_collapsed(line) for line in output.splitlines()]
    told = "".join(f"{line}\n" for line in lines if line)
    found = re.fullmatch(pattern, told)
    if found is not None:
        known |= {shown: found[group] for shown, group in names.items()}
    return found is not None


def _pattern(line: str, known: dict[str, str], names: dict[str, str]) -> str:
    text = _collapsed(line)
    if text == ANYTHING:
        return r"(?:.*\n)*?"
    if not text:
        return ""

    def varying(found: re.Match[str]) -> str:
        shown = found[0]
        if found.lastgroup != "id":
            return _VARYING_PATTERNS[str(found.lastgroup)]
        if shown in known:
            return re.escape(known[shown])
        if shown in names:
            return f"(?P={names[shown]})"
        names[shown] = f"id{len(names)}"
        return f"(?P<{names[shown]}>{_ID})"

    parts: list[str] = []
    end = 0
    for found in _VARYING.finditer(text):
        parts += [re.escape(text[end : found.start()]), varying(found)]
        end = found.end()
    return "".join([*parts, re.escape(text[end:])]) + r"\n"


def _collapsed(line: str) -> str:
    return " ".join(line.split())

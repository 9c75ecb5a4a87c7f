"""What stands between the fences of a document: code to run, and commands with what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ANYTHING = "…"


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the word behind it, its text, and its line."""

    language: str
    word: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """What is typed, and what comes back."""

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


def matches(printed: tuple[str, ...], output: str) -> bool:
    """Tell whether an output is the one that a document shows; an ellipsis is anything."""
    pattern = "".join(_pattern(line) for line in printed)
    lines = [_collapsed(line) for line in output.splitlines()]
    told = "".join(f"{line}\n" for line in lines if line)
    return re.fullmatch(pattern, told) is not None


def _pattern(line: str) -> str:
    text = _collapsed(line)
    if text == ANYTHING:
        return r"(?:.*\n)*?"
    if not text:
        return ""
    # The port of a document is the one that is free.
    escaped = re.sub(r":8642\b", r":\\d+", re.escape(text))
    return escaped.replace(re.escape(ANYTHING), ".*") + r"\n"


def _collapsed(line: str) -> str:
    return " ".join(line.split())

"""The answers of the scripted models of all frameworks, and their tools.

A script uses only the messages in the request, so it continues after a restart like a real model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

# Has the form of a key but is not valid anywhere.
SECRET = "ghp_" + "a1B2" * 9
TRACE = "ADAPTER_TRACE"
IN_TOKENS, OUT_TOKENS = 10, 5


@dataclass(frozen=True)
class Call:
    """A tool call of the model."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


_REFUND = [
    Call("look_up", {"order": "A-17", "token": SECRET}),
    Call("refund", {"order": "A-17"}),
]


def move(prompt: str, results: list[str]) -> Call | str:
    """Return the next message of a model after these results of its tools."""
    traced("asked")
    if "refund" in prompt and len(results) < len(_REFUND):
        return _REFUND[len(results)]
    if not results and "break" in prompt:
        return Call("break_down")
    if not results and "slow" in prompt:
        return Call("be_slow")
    return f"Done: {results[-1]}" if results else f"Heard: {prompt}"


def traced(what: str) -> None:
    """Append a line to a file that survives this process."""
    with Path(os.environ[TRACE]).open("a") as trace:
        trace.write(f"{what}\n")


def traces() -> list[str]:
    """Return everything that was recorded so far."""
    path = Path(os.environ[TRACE])
    return path.read_text().split() if path.exists() else []


async def look_up(order: str, token: str) -> str:
    """Look up an order."""
    traced("look_up")
    return f"{order} costs 5"


async def refund(order: str) -> str:
    """Refund an order."""
    traced(f"refund:{order}")
    return f"{order} refunded"


async def break_down() -> str:
    """Fail."""
    raise ValueError("the till is jammed")


async def be_slow() -> str:
    """Wait until a file beside the record exists."""
    traced("slow")
    may_end = anyio.Path(f"{os.environ[TRACE]}.go")
    try:
        while True:
            if await may_end.exists():
                return "at last"
            await anyio.sleep(0.01)
    except BaseException:
        traced("stopped")
        raise

"""What the scripted models of all frameworks say, and the tools that they call.

A script looks only at what a model is told, so it goes on after a restart as a real model would.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

# The shape of a key, and none that opens anything.
SECRET = "ghp_" + "a1B2" * 9
TRACE = "ADAPTER_TRACE"
IN_TOKENS, OUT_TOKENS = 10, 5


@dataclass(frozen=True)
class Call:
    """A tool that the model wants called."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


_REFUND = [
    Call("look_up", {"order": "A-17", "token": SECRET}),
    Call("refund", {"order": "A-17"}),
]


def move(prompt: str, results: list[str]) -> Call | str:
    """What a model says next, after these results of its tools."""
    traced("asked")
    if "refund" in prompt and len(results) < len(_REFUND):
        return _REFUND[len(results)]
    if not results and "break" in prompt:
        return Call("break_down")
    if not results and "slow" in prompt:
        return Call("be_slow")
    return f"Done: {results[-1]}" if results else f"Heard: {prompt}"


def traced(what: str) -> None:
    """Leave a trace that outlives this process."""
    with Path(os.environ[TRACE]).open("a") as trace:
        trace.write(f"{what}\n")


def traces() -> list[str]:
    """Everything that was traced so far."""
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
    """Wait until a file beside the trace says that it may end."""
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

"""A small support desk that the tests of the Python API share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import msgspec

from wopr import NodeContext, Workflow, node


@dataclass
class Ticket:
    customer: str
    text: str
    priority: int = 1
    note: str | None = None


class Reply(TypedDict):
    text: str


class ShoutInputs(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    marks: int = 1


class Shouted(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    length: int


@node("acme.shout")
def shout(ctx: NodeContext, config: dict[str, str], inputs: ShoutInputs) -> Shouted:
    """Say it in capitals."""
    text = inputs.text.upper() + "!" * inputs.marks
    return Shouted(text=text, length=len(text))


def desk() -> Workflow[Ticket, Reply]:
    """Shout what the customer wrote, and let somebody approve it."""
    flow = Workflow("desk", inputs=Ticket, outputs=Reply)
    loud = flow.add("loud", shout, text=flow.inputs.text)
    review = flow.approval("review", "Send this?", artifact=loud["text"])
    end = flow.end(text=review["artifact"])
    loud >> review >> end
    return flow

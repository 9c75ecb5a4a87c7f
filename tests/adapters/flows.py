"""The workflow around a desk: it looks up an order and refunds it, if a person agrees."""

from __future__ import annotations

from dataclasses import dataclass

from wopr import Workflow
from wopr.adapters.wrapping import OnRecord
from wopr.protocol.workflow import NodeSettings

# What every scripted model thinks before it calls a tool.
THOUGHT = "I must use a tool."


@dataclass
class Order:
    """What a customer wants."""

    text: str


@dataclass
class Reply:
    """What the customer gets."""

    text: str


def desk_flow(
    name: str, desk: OnRecord, config: object = None, timeout: int = 0
) -> Workflow[Order, Reply]:
    """A workflow with one desk."""
    flow = Workflow(name, inputs=Order, outputs=Reply)
    settings = NodeSettings(timeout=timeout) if timeout else NodeSettings()
    answer = flow.add("answer", desk, config=config, settings=settings, prompt=flow.inputs.text)
    end = flow.end(text=answer["text"])
    answer.then(end)
    return flow

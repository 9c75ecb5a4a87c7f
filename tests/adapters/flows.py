"""The workflow around a desk: it looks up an order and refunds it with a person's approval."""

from __future__ import annotations

from dataclasses import dataclass

from wopr import Workflow
from wopr.adapters.wrapper import WrappedAgent
from wopr.protocol.workflow import NodeSettings

# The reasoning of every scripted model before a tool call.
THOUGHT = "I must use a tool."


@dataclass
class Order:
    """The request of a customer."""

    text: str


@dataclass
class Reply:
    """The answer to a customer."""

    text: str


def desk_flow(
    name: str, desk: WrappedAgent, config: object = None, timeout: int = 0
) -> Workflow[Order, Reply]:
    """Return a workflow with one desk."""
    flow = Workflow(name, inputs=Order, outputs=Reply)
    settings = NodeSettings(timeout=timeout) if timeout else NodeSettings()
    answer = flow.add("answer", desk, config=config, settings=settings, prompt=flow.inputs.text)
    end = flow.end(text=answer["text"])
    answer.then(end)
    return flow

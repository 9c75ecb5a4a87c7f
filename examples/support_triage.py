"""Support triage with approval: an agent sorts a ticket, another answers it, a person approves.

    wopr dev examples/support_triage.py
    wopr run support-triage -i customer=ada -i text="Where is my parcel?" --follow
    wopr inbox list

A decision with low confidence waits in the inbox. Every reply waits there before it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wopr import Agent, Workflow, tool

MODEL = "openai:gpt-4o-mini"


@dataclass
class Ticket:
    """A ticket of a customer."""

    customer: str
    text: str


@dataclass
class Order:
    """An order of a customer."""

    number: str
    state: str


@dataclass
class Triage:
    """The team for a ticket, and a summary."""

    team: Literal["shipping", "billing"]
    summary: str


@dataclass
class Reply:
    """The reply to the customer."""

    text: str
    team: str


ORDERS = {"ada": [Order("A-17", "on its way since Monday")]}


@tool
async def search_orders(customer: str) -> list[Order]:
    """Find the orders of a customer."""
    return ORDERS.get(customer, [])


triage = Agent(
    "acme.support.triage",
    model=MODEL,
    tools=[search_orders],
    threshold=0.8,
    output=Triage,
    model_class="classification",
    instructions="Name the team that a ticket belongs to. Look at the customer's orders first.",
)
writer = Agent(
    "acme.support.writer",
    model=MODEL,
    model_class="writing",
    instructions="Answer the ticket in two friendly sentences.",
)

flow = Workflow("support-triage", inputs=Ticket, outputs=Reply)
sort = flow.agent("sort", triage, prompt=flow.inputs.text, customer=flow.inputs.customer)
write = flow.agent("write", writer, prompt=flow.inputs.text, triage=sort["result"])
review = flow.approval("review", "Send this reply?", artifact=write["text"])
end = flow.end(text=review["artifact"], team=sort["result"]["team"])
sort >> write >> review >> end

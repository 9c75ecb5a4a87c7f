"""The agents and workflows of `wopr demo`, with scripted models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from wopr.api.agent import Agent
from wopr.api.nodes import any_of, expr
from wopr.api.tools import tool
from wopr.api.workflow import Workflow
from wopr.testing import ModelRequest, ScriptedModels, call, hand_over, say
from wopr.testing.models import Step


@dataclass
class Ticket:
    """A message of a customer."""

    customer: str
    text: str


@dataclass
class Order:
    """An order of a customer."""

    number: str
    paid: str
    state: str


@dataclass
class Triage:
    """The team for a ticket."""

    team: Literal["billing", "shipping"]
    summary: str


@dataclass
class Reply:
    """The reply to the customer."""

    text: str


class Rating(msgspec.Struct, frozen=True, kw_only=True):
    """The rating of a run."""

    rating: Annotated[int, msgspec.Meta(ge=1, le=5)]
    note: str


@dataclass
class JudgeInputs:
    """The run to judge."""

    run: dict[str, Any]


ORDERS: Final = {
    "ada": [Order("A-17", "twice", "delivered")],
    "grace": [Order("G-4", "once", "on its way since Monday")],
}


@tool
async def search_orders(customer: str) -> list[Order]:
    """Find the orders of a customer."""
    return ORDERS.get(customer, [])


@tool
async def quote_refund(order: str) -> str:
    """Say what would be paid back for an order."""
    return f"19.90 for {order}"


billing = Agent(
    "acme.desk.billing",
    model="scripted:billing",
    tools=[quote_refund],
    instructions="You answer questions about money. Quote the refund before you promise it.",
)
writer = Agent(
    "acme.desk.writer",
    model="scripted:writer",
    model_class="writing",
    instructions="You answer everything else, in two friendly sentences.",
)
triage = Agent(
    "acme.desk.triage",
    model="scripted:triage",
    model_class="classification",
    tools=[search_orders],
    threshold=0.8,
    output=Triage,
    handoffs={billing: "the customer wants money back"},
    instructions="Say which team a ticket belongs to. Look at the customer's orders first.",
)
critic = Agent(
    "acme.desk.critic",
    model="scripted:critic",
    output=Rating,
    instructions="Give one to five stars for what the customer got.",
)


def support_desk() -> Workflow[Ticket, Reply]:
    """Find the team for a ticket, write a reply, and send it after an approval."""
    flow = Workflow("desk", inputs=Ticket, outputs=Reply, title="Support desk")
    given = flow.inputs
    sort = flow.agent("triage", triage, prompt=given.text, customer=given.customer)
    money = flow.agent("billing", billing, prompt=given.text, customer=given.customer)
    other = flow.agent("writer", writer, prompt=given.text, customer=given.customer)
    draft = expr('"billing" in nodes ? nodes.billing.text : nodes.writer.text', str)
    review = flow.approval("review", "Send this reply?", artifact=draft)
    end = flow.end(text=review["artifact"])
    sort.when("has(outputs.handoff)").then(money)
    sort.when("!has(outputs.handoff)").then(other)
    any_of(money, other).then(review).then(end)
    return flow


def judge_workflow() -> Workflow[JudgeInputs, Rating]:
    """Rate a reply."""
    flow = Workflow("desk-judge", inputs=JudgeInputs, outputs=Rating, title="How good was it?")
    look = flow.agent(
        "look", critic, prompt="How good is this reply?", run=flow.inputs.run["outputs"]
    )
    end = flow.end(rating=look["result"]["rating"], note=look["result"]["note"])
    look.then(end)
    return flow


def demo_models() -> ScriptedModels:
    """Return the scripted models. The same text always gets the same answer."""
    return ScriptedModels(
        {
            "triage": [_triage],
            "billing": [_billing],
            "writer": [_writer],
            "critic": [_critic],
        }
    )


def _triage(request: ModelRequest) -> Step:
    text = _user_text(request)
    if not _has_called(request):
        return call(search_orders, customer="ada" if "charged" in text else "grace")
    if "charged" in text:
        return hand_over(billing, "paid twice, wants one payment back")
    is_clear = "parcel" in text
    return say(
        Triage("shipping", "asks for a parcel" if is_clear else "something does not work"),
        sure=0.95 if is_clear else 0.45,
        because="the order is on its way" if is_clear else "no order fits what was written",
    )


def _billing(request: ModelRequest) -> Step:
    if not _has_called(request):
        return call(quote_refund, order="A-17")
    return "You paid twice for A-17, sorry! 19.90 are on their way back to you."


def _writer(request: ModelRequest) -> Step:
    if "parcel" in _user_text(request):
        return "Your parcel G-4 left us on Monday. It should be with you in two days."
    return "Thank you for writing. Which of your orders does it concern, and what happens?"


def _critic(request: ModelRequest) -> Step:
    is_exact = "19.90" in _user_text(request) or "G-4" in _user_text(request)
    rating = 5 if is_exact else 3
    return say(Rating(rating=rating, note="says what happens" if is_exact else "asks back"))


def _user_text(request: ModelRequest) -> str:
    return " ".join(message.content for message in request.messages if message.role == "user")


def _has_called(request: ModelRequest) -> bool:
    return any(message.role == "tool" for message in request.messages)

"""A help desk whose lead is a model: it decides who works next, asks a person, or ends the work.

    wopr dev examples/model_supervisor.py
    wopr run help-desk -i ticket="Where is my parcel A-17?" --follow

Compare `research_crew.py`, where rules decide. A decision that the lead is not sure of waits in the
inbox before anything happens; `wopr inbox list` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from wopr import Agent, Workflow, tool

MODEL = "openai:gpt-4o-mini"
ORDERS = {"A-17": "sent on Monday, arrives on Thursday"}


@dataclass
class Ticket:
    """What a customer wants."""

    ticket: str


@dataclass
class Reply:
    """What the customer gets."""

    text: str


@tool
def find_order(number: str) -> str:
    """Tell what became of an order."""
    return ORDERS.get(number, "there is no such order")


lead = Agent(
    "acme.helpdesk.lead",
    model=MODEL,
    model_class="reasoning",
    instructions="You lead a help desk. You never answer customers yourself.",
)
clerk = Agent(
    "acme.helpdesk.clerk",
    model=MODEL,
    tools=[find_order],
    instructions="Find out what became of the order. Say what you found in one sentence.",
)
author = Agent(
    "acme.helpdesk.author",
    model=MODEL,
    instructions="Answer the ticket kindly, from the note alone.",
)

look_up = Workflow("help-desk-look-up", inputs=Ticket)
looked = look_up.agent("look", clerk, prompt=look_up.inputs.ticket)
looked >> look_up.set("note", look_up.variable("note", str), looked["text"])


@dataclass
class Draft:
    """What the author works from."""

    ticket: str
    note: str


answer = Workflow("help-desk-answer", inputs=Draft)
written = answer.agent("write", author, prompt=answer.inputs.ticket, note=answer.inputs.note)
written >> answer.set("hand-in", answer.variable("reply", str), written["text"])

desk = Workflow("help-desk", inputs=Ticket, outputs=Reply)
note = desk.variable("note", str, default="")
reply = desk.variable("reply", str, default="")
decide = desk.supervisor(
    "decide",
    lead,
    prompt="Get the ticket answered. Stop when there is a reply.",
    workers={
        look_up: "Finds out what became of an order, and leaves a note.",
        answer: "Writes the reply from the ticket and the note.",
    },
    # The model sees these, and nothing else of the run.
    ticket=desk.inputs.ticket,
    note=note,
    reply=reply,
)
dispatch = desk.add(
    "dispatch",
    "core.dispatch",
    config={
        "inputMapping": {"ticket": "ticket"},
        "perWorkerInputMappings": {answer.id: {"ticket": "ticket", "note": "note"}},
        "perWorkerOutputMappings": {
            look_up.id: {"note": "note"},
            answer.id: {"reply": "reply"},
        },
    },
)
decide >> dispatch >> decide
dispatch >> desk.end(text=reply)

"""A help desk with a model as supervisor: it chooses the next worker, asks a person, or ends.

    wopr dev examples/model_supervisor.py
    wopr run help-desk -i ticket="Where is my parcel A-17?" --follow

In `research_crew.py` rules decide instead. A decision with low confidence waits in the inbox before
it is executed; `wopr inbox list` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from wopr import Agent, Workflow, tool

MODEL = "openai:gpt-4o-mini"
ORDERS = {"A-17": "sent on Monday, arrives on Thursday"}


@dataclass
class Ticket:
    """A request of a customer."""

    ticket: str


@dataclass
class Reply:
    """The reply to the customer."""

    text: str


@tool
def find_order(number: str) -> str:
    """Return the state of an order."""
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
    instructions="Find the state of the order. Report it in one sentence.",
)
author = Agent(
    "acme.helpdesk.author",
    model=MODEL,
    instructions="Answer the ticket kindly, using only the note.",
)

look_up = Workflow("help-desk-look-up", inputs=Ticket)
looked = look_up.agent("look", clerk, prompt=look_up.inputs.ticket)
looked >> look_up.set("note", look_up.variable("note", str), looked["text"])


@dataclass
class Draft:
    """Inputs of the author."""

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
        look_up: "Finds the state of an order and writes a note.",
        answer: "Writes the reply from the ticket and the note.",
    },
    # The model gets only these inputs of the run.
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

"""Two agents that share one conversation: an editor asks, a writer drafts, both know what was said.

Serve it and start a run (needs the key of a model provider):

    wopr dev examples/shared_notes.py
    wopr run shared-notes -i topic="the colour of the sky"

Without sharing, the writer's second task would mean nothing to its model: it is told "your draft"
and "the review", and neither is an input of the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from wopr import Agent, Workflow

MODEL = "openai:gpt-4o-mini"
# All nodes of a run that name this group have one conversation.
DESK = "shared:desk"

writer = Agent(
    "acme.desk.writer",
    model=MODEL,
    instructions="You write short, plain paragraphs.",
    sharing=DESK,
)
editor = Agent(
    "acme.desk.editor",
    model=MODEL,
    instructions="You name the one thing that a text lacks most.",
    sharing=DESK,
)
proofreader = Agent(
    "acme.desk.proofreader",
    model=MODEL,
    instructions="You correct spelling and nothing else.",
)


@dataclass
class Topic:
    """What to write about."""

    topic: str


@dataclass
class Article:
    """What is printed."""

    text: str


flow = Workflow("shared-notes", inputs=Topic, outputs=Article, title="Write, review, improve")
draft = flow.agent("draft", writer, prompt="Write about the topic.", topic=flow.inputs.topic)
review = flow.agent("review", editor, prompt="What does the draft lack?")
improve = flow.agent("improve", writer, prompt="Improve your draft. Heed the review.")
# This one starts without the conversation, and gets its text as an input.
proofread = flow.agent("proofread", proofreader, prompt="Correct the text.", text=improve["text"])
end = flow.end(text=proofread["text"])
draft >> review >> improve >> proofread >> end

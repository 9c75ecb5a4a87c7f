"""Two agents that share one conversation: a writer drafts, an editor reviews.

Serve it and start a run (this needs the key of a model provider):

    wopr dev examples/shared_notes.py
    wopr run shared-notes -i topic="the colour of the sky"

Without sharing, the model would not understand the writer's second task. The task mentions "your
draft" and "the review", and neither is an input of the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from wopr import Agent, Workflow

MODEL = "openai:gpt-4o-mini"
# All nodes of a run with this group share one conversation.
SHARING = "shared:editing"

writer = Agent(
    "acme.editing.writer",
    model=MODEL,
    instructions="You write short, plain paragraphs.",
    sharing=SHARING,
)
editor = Agent(
    "acme.editing.editor",
    model=MODEL,
    instructions="You name the one thing that a text lacks most.",
    sharing=SHARING,
)
proofreader = Agent(
    "acme.editing.proofreader",
    model=MODEL,
    instructions="You correct spelling and nothing else.",
)


@dataclass
class Topic:
    """The topic of the article."""

    topic: str


@dataclass
class Article:
    """The finished article."""

    text: str


flow = Workflow("shared-notes", inputs=Topic, outputs=Article, title="Write, review, improve")
draft = flow.agent("draft", writer, prompt="Write about the topic.", topic=flow.inputs.topic)
review = flow.agent("review", editor, prompt="What does the draft lack?")
improve = flow.agent("improve", writer, prompt="Improve your draft. Follow the review.")
# The proofreader does not share the conversation; it gets the text as an input.
proofread = flow.agent("proofread", proofreader, prompt="Correct the text.", text=improve["text"])
end = flow.end(text=proofread["text"])
draft >> review >> improve >> proofread >> end

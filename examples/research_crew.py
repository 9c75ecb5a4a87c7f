"""A research crew: a supervisor sends a question to a finder and then to a writer.

    wopr dev examples/research_crew.py
    wopr run research-crew -i question="Why is the sky blue?" --follow

Each worker is a workflow with its own run and log. The handoffs are on the supervisor's log.
"""

from __future__ import annotations

from dataclasses import dataclass

from wopr import Agent, Workflow, tool

MODEL = "openai:gpt-4o-mini"


@dataclass
class Question:
    """A question for the crew."""

    question: str


@dataclass
class Draft:
    """Inputs of the writer."""

    question: str
    facts: list[str]


@dataclass
class Facts:
    """Facts that the finder found."""

    facts: list[str]


@dataclass
class Answer:
    """The answer of the crew."""

    text: str


LIBRARY = {
    "sky": ["Short waves are scattered more than long ones.", "Blue light has short waves."],
}


@tool
def look_up(word: str) -> list[str]:
    """Return the facts of the library about a word."""
    return LIBRARY.get(word.lower(), [])


lead = Agent("acme.research.lead", model=MODEL, model_class="reasoning")
finder = Agent(
    "acme.research.finder",
    model=MODEL,
    tools=[look_up],
    output=Facts,
    model_class="research",
    instructions="Find facts that answer the question. Use the library; invent nothing.",
)
author = Agent(
    "acme.research.author",
    model=MODEL,
    model_class="writing",
    instructions="Answer the question in one paragraph, using only the facts.",
)

find = Workflow("research-find", inputs=Question)
found = find.agent("find", finder, prompt=find.inputs.question)
keep = find.set("keep", find.variable("facts", list[str]), found["result"]["facts"])
found >> keep

write = Workflow("research-write", inputs=Draft)
written = write.agent("write", author, prompt=write.inputs.question, facts=write.inputs.facts)
hand_in = write.set("hand-in", write.variable("answer", str), written["text"])
written >> hand_in

crew = Workflow("research-crew", inputs=Question, outputs=Answer)
crew.uses(find, write)
crew.variable("facts", list[str], default=[])
answer = crew.variable("answer", str, default="")
decide = crew.add(
    "decide",
    "core.orchestrator.supervisor",
    agent=lead,
    config={
        "rules": [
            {
                "when": "turn == 0",
                "decision": {"kind": "next-worker", "nextWorkerIds": [find.id]},
            },
            {
                "when": 'variables.answer == "" && size(variables.facts) > 0',
                "decision": {"kind": "next-worker", "nextWorkerIds": [write.id]},
            },
        ]
    },
)
dispatch = crew.add(
    "dispatch",
    "core.dispatch",
    config={
        "inputMapping": {"question": "question"},
        "perWorkerInputMappings": {write.id: {"question": "question", "facts": "facts"}},
        "perWorkerOutputMappings": {
            find.id: {"facts": "facts"},
            write.id: {"answer": "answer"},
        },
    },
)
end = crew.end(text=answer)
decide >> dispatch >> decide
dispatch >> end

"""The table of all pages: their paths and their forms. A new page needs a row here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.agent_definitions import MOCK_AGENT
from tests.support.client import Wire
from tests.support.definitions import delay, edge, fresh, node, variable, workflow
from tests.support.host import ServedHost
from tests.support.interrupts import gate, waiting_run
from tests.support.kahn import ASKS, KahnRun, push_run
from wopr.console.app import pages
from wopr.console.page import Page
from wopr.nodes.flow import MAX_DELAY_MS
from wopr.protocol.documents import JsonObject


@dataclass(frozen=True)
class Sample:
    """A page with its path; `form` is the body of its form, if it has one."""

    page: Page
    path: str
    form: dict[str, str]

    def filled(self, ids: dict[str, str]) -> str:
        return self.path.format(**ids)

    def probed(self, ids: dict[str, str]) -> str:
        """Return a path that shows the probes: a list can be full of other tests' data."""
        return NARROWED.get(self.page.name, self.path).format(**ids)


# By the page's name: the path where it is not the plain one, and the form.
PATHS = {
    "fork": "/runs/{run_id}/fork?mode=branch&from=1",
    "compare": "/compare?a={run_id}&b={ended}",
    "live": "/runs/{ended}/live",
    "artifact": "/runs/{large}/artifacts/{artifact_id}",
    "wait": "/inbox/{waiting}/{gate}",
    "find-judge": "/reviews/judges?id={judge_id}",
    "review-item": "/reviews/queues/{queue_id}/items/{ended}?until=9999999999999",
}
NARROWED = {"runs": "/runs?workflowId={workflow_id}"}
FORMS: dict[str, dict[str, str]] = {
    "signIn": {"key": "nobody", "next": "/"},
    "signOut": {},
    "theme": {"theme": "dark", "next": "/settings"},
    "cancel": {"reason": "enough"},
    "pause": {"drainPolicy": "immediate"},
    "resume": {},
    "fork": {"mode": "branch", "from": "1"},
    "feedback": {"kind": "flag"},
    "start-run": {},
    "create-key": {"name": "x", "role": "viewer"},
    "revoke-key": {},
    "fleet-demo": {"do": "load"},
    "answer-many": {"answer": "accept"},
    "wait": {"answer": "accept", "interruptId": "int-gate:0"},
    "create-queue": {"name": "q", "ask.rating": "1"},
    "next-item": {},
    "review-item": {"rating": "4"},
}
SAMPLES = [
    Sample(page, PATHS.get(page.name, page.path), FORMS.get(page.name, {})) for page in pages()
]
# Pages that only redirect, and those that are a file or a stream.
LEADS_ON = {"start", "theme", "create-key", "answer-many", "next-item", "find-judge"}
NO_MARKUP = {
    "markdown",
    "bundle",
    "artifact",
    "live",
    "workflow-source",
    "manifest",
    "inbox-count",
}
SHOWN = [s for s in SAMPLES if s.page.name not in LEADS_ON | NO_MARKUP]
SENT = [s for s in SAMPLES if s.page.post is not None]

# Pages that show no text of users.
WORDLESS = {"signIn", "signOut", "keys", "cancel", "pause", "resume", "create-queue"} | {
    # They show only ids of agents, checkpoints and runs, and numbers, which cannot contain markup.
    "usage",
    "fleet",
    "fleet-audits",
    "fleet-runs",
    "fleet-demo",
}
# The duration of a run that must outlast all tests; one node waits for a minute at most.
MINUTES = 60
# A shorter text may be on a page by chance.
SHORTEST_ID = 12

# Texts that become markup if they are written unescaped.
PROBES = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    '"><svg onload=window.pwned=1>',
    "' onmouseover='window.pwned=1",
    "</pre></title></script><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u2066",
]
PROBE = " ".join(PROBES)
# Texts that no page may contain literally.
MARKUP_PROBES = [probe for probe in PROBES if "<" in probe]


def probed_agent(agent_id: str) -> JsonObject:
    """Return a manifest with a probe in every text."""
    return {
        "agentId": agent_id,
        "version": PROBE[:60],
        "persona": PROBE[:200],
        "label": PROBE[:100],
        "description": PROBE,
        "modelClass": "reasoning",
        "systemPrompt": PROBE,
        "toolAllowlist": ["t:t", PROBE],
        "requiresCapabilities": [PROBE],
    }


def probed_workflow(agent_id: str) -> JsonObject:
    """Return a definition with a probe in every text."""
    agent = {"agentId": agent_id, "modelClass": "reasoning"}
    script = {
        "mockReasoning": {"summary": PROBE},
        "mockToolCalls": [{"toolId": "t:t", "arguments": {"a": PROBE}, "result": {PROBE: PROBE}}],
        "mockHandoff": {"toAgentId": "core.conformance.other", "reason": PROBE},
        "mockDecision": {"decision": {"say": PROBE}, "confidence": 0.9, "reasoning": PROBE},
    }
    return workflow(
        [
            node(PROBE[:100], name=PROBE, notes=PROBE),
            node("agent", MOCK_AGENT, name="agent", config=script, agent=agent),
            node("gate", "core.approvalGate", name=PROBE, config={"title": PROBE}),
        ],
        edges=[edge(PROBE[:100], "agent", id="e1", label=PROBE[:80]), edge("agent", "gate")],
        id=fresh("conformance-probe"),
        name=PROBE[:250],
        description=PROBE,
        variables=[variable("text", description=PROBE, defaultValue=PROBE)],
    )


class ProbedStory(KahnRun):
    """A pushed run that waits, with a probe in every text of its lines."""

    @property
    def lines(self) -> list[bytes]:
        """Return its lines."""
        return [
            self.start(task=PROBE, model=PROBE),
            self.move(0, "thinking", "tool_call", reason=PROBE),
            self.call(
                tool_name=PROBE, ok=False, input_summary=PROBE, output_summary=PROBE, error=PROBE
            ),
            self.check(checkpoint_id="probe:words", result="fail", evidence={PROBE: PROBE}),
            self.check(agent_id=None, checkpoint_id="probe:words", result="warn", own=PROBE),
            self.move(1, *ASKS, reason=PROBE),
        ]


class TenantData:
    """Data of one tenant for every page, partly with probes."""

    def __init__(self, wire: Wire, host: ServedHost, tenant: str = "acme") -> None:
        self.tag = fresh("secret-tag")
        waits = [
            delay("wait", MAX_DELAY_MS),
            *(delay(f"w{n}", MAX_DELAY_MS) for n in range(MINUTES)),
        ]
        definition = workflow(waits, id=fresh(tenant), name=f"{tenant} plan")
        wire.register(definition)
        self.run_id = wire.create(definition["id"], tags=[self.tag])
        self.ended = str(wire.run("conformance-noop", tags=[self.tag])["runId"])
        with_text = workflow([node("only")], id=fresh(tenant), variables=[variable("text")])
        large = wire.run(wire.register(with_text), {"text": self.tag * 20_000})
        self.agent_id = fresh(f"private.{tenant}.agent")
        installed = wire.post("/v1/agents", probed_agent(self.agent_id))
        assert installed.status_code == 201, installed.text
        self.probed_workflow = probed_workflow(self.agent_id)
        wire.register(self.probed_workflow)
        self.probed = wire.create(
            self.probed_workflow["id"],
            {"text": PROBE},
            tags=[PROBE[:200]],
            metadata={"x": PROBE},
        )
        wire.events_until(self.probed, "interrupt.requested")
        self._annotate(wire)
        self.story = ProbedStory(fresh("probed"))
        self.observed = push_run(wire, *self.story.lines)
        self.waiting = waiting_run(wire, gate("gate", title=f"{tenant} asks"))
        made = host.command("keys", "create", "--tenant", tenant, "--name", PROBE, "--json")
        self.key_id = re.findall(r"key_[0-9a-f]+", made)[0]
        self.real = {
            "run_id": self.run_id,
            "ended": self.ended,
            "large": str(large["runId"]),
            "artifact_id": str(large["inputs"]["text"]["$artifact"]["artifactId"]),
            "workflow_id": str(definition["id"]),
            "node_id": "wait",
            "sequence": "1",
            "key_id": self.key_id,
            "fleet_agent_id": self.story.agent_id,
            "fleet_run_id": self.story.run_id,
            "agent_id": self.agent_id,
            "waiting": self.waiting,
            "gate": "gate",
            "queue_id": self._queue(wire),
            "judge_id": self._judge(wire),
        }
        self.name = str(definition["name"])
        self.probes = self.real | {
            "run_id": self.probed,
            "workflow_id": str(self.probed_workflow["id"]),
            "node_id": "agent",
            "sequence": "4",
            "waiting": self.probed,
        }
        # Unused ids of the same length.
        self.missing = {
            name: re.sub("[0-9a-f]{8}$", "ffffffff", value) for name, value in self.real.items()
        }

    def _annotate(self, wire: Wire) -> None:
        event = wire.log(self.probed)[4]["eventId"]
        for signal, target in (
            ({"kind": "label", "label": PROBE}, {}),
            ({"kind": "correction", "correction": PROBE}, {"eventId": event}),
            ({"kind": "flag"}, {"nodeId": "agent"}),
        ):
            body = {"signal": signal, "target": target, "note": PROBE}
            answer = wire.post(f"/v1/runs/{self.probed}/annotations", body)
            assert answer.status_code == 201, answer.text

    def _queue(self, wire: Wire) -> str:
        rubric = [
            {"kind": "rating", "question": PROBE},
            {"kind": "label", "question": PROBE, "labels": [PROBE], "required": False},
            {"kind": "flag", "question": PROBE, "required": False},
        ]
        body = {"name": PROBE[:256], "rubric": rubric, "runIds": [self.ended]}
        made = wire.post("/v1/queues", body)
        assert made.status_code == 201, made.text
        return str(made.json()["queueId"])

    def _judge(self, wire: Wire) -> str:
        order = {
            "workflowId": "conformance-noop",
            "agentId": self.agent_id,
            "runIds": [self.run_id],
            "inputMapping": {PROBE: PROBE},
        }
        made = wire.post("/v1/judges", order)
        assert made.status_code == 202, made.text
        return str(made.json()["judgeId"])

    def marks(self) -> list[str]:
        """Return the words that no page of another tenant may contain."""
        probed = (self.probed, str(self.probed_workflow["id"]))
        ids = [each for each in self.real.values() if len(each) > SHORTEST_ID]
        return [*ids, *probed, self.tag, self.name]

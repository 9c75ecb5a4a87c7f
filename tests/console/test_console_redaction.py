"""No page of the console shows a credential."""

from __future__ import annotations

import html
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.console.conftest import SignedIn
from tests.support.agent_definitions import MOCK_AGENT
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import edge, fresh, node, variable, workflow
from tests.support.host import ACME, VIEWER, ServedHost
from tests.support.kahn import KahnRun, push_run
from tests.support.surfaces import CANARIES, leaks
from wopr.process.settings import Settings
from wopr.security.redact import Redactor

# Shapes that need a name or a scheme before them.
NAMED = {
    "password": "hunter2hunter9",
    "basic": "dXNlcjpwYXNzd29yZA",
    "quoted": "pa<ss>&'word9",
}
TEXT = " ".join(
    [
        *CANARIES.values(),
        f"password={NAMED['password']}",
        f"BASIC {NAMED['basic']}==",
        f'{{"api_key": "{NAMED["quoted"]}"}}',
        f"x-{CANARIES['openai']}",
    ]
)
HIDDEN = (
    *(canary.removeprefix("Bearer ") for canary in CANARIES.values()),
    *NAMED.values(),
    html.escape(NAMED["quoted"]).replace("&#x27;", "&#39;"),
)


@dataclass
class Planted:
    """Ids of resources with credentials."""

    run_id: str
    observed: str
    workflow_id: str
    agent_id: str
    queue_id: str
    story: KahnRun


@pytest.fixture
def planted(wire: Wire, host: ServedHost) -> Iterator[Planted]:
    """Create runs, agents, notes, keys and pushed lines with credentials in every text."""
    agent_id = fresh("private.acme.leaky")
    description = {"agentId": agent_id, "version": "1", "modelClass": "reasoning"}
    texts = {name: "x" for name in ("persona", "label", "description", "systemPrompt")}
    assert wire.post("/v1/agents", description | texts).status_code == 201
    script = {
        "mockReasoning": {"summary": "thinks"},
        "mockDecision": {"decision": {"say": "yes"}, "confidence": 0.9, "reasoning": "why"},
    }
    agent = {"agentId": agent_id, "modelClass": "reasoning"}
    # A definition must not contain credentials; the texts of its run can.
    definition = workflow(
        [
            node("agent", MOCK_AGENT, agent=agent, config=script),
            node("gate", "core.approvalGate", config={"title": "t"}),
        ],
        edges=[edge("agent", "gate")],
        id=fresh("conformance-leaky"),
        variables=[variable("text"), variable("more", "object")],
    )
    wire.register(definition)
    more = {TEXT: TEXT, "password": NAMED["password"], "list": [TEXT]}
    run_id = wire.create(
        definition["id"],
        {"text": TEXT, "more": more},
        tags=[CANARIES["github"]],
        metadata={"note": TEXT},
    )
    wire.events_until(run_id, "interrupt.requested")
    note = {"signal": {"kind": "correction", "correction": TEXT}, "note": TEXT}
    assert wire.post(f"/v1/runs/{run_id}/annotations", note).status_code == 201
    queue = {"name": TEXT[:256], "rubric": [{"kind": "rating", "question": TEXT[:500]}]}
    made = wire.post("/v1/queues", queue | {"runIds": [run_id]})
    assert made.status_code == 201, made.text
    story = KahnRun(fresh("leaky"))
    observed = push_run(
        wire,
        story.start(task=TEXT, model=CANARIES["openai"]),
        story.move(0, "thinking", "tool_call", reason=TEXT),
        story.call(tool_name=CANARIES["github"], ok=False, error=TEXT, input_summary=TEXT),
        story.check(evidence={"seen": TEXT, "password": NAMED["password"]}),
        story.move(1, "tool_call", "converged", reason=TEXT),
        story.end(note=TEXT),
    )
    host.command("keys", "create", "--tenant", "acme", "--name", TEXT, "--json")
    yield Planted(run_id, observed, definition["id"], agent_id, str(made.json()["queueId"]), story)
    wire.post(f"/v1/runs/{run_id}/cancel", {"reason": TEXT})


def test_no_page_shows_a_credential_in_its_content(acme: Person, planted: Planted) -> None:
    run_id, observed = planted.run_id, planted.observed
    paths = [
        f"/runs/{run_id}",
        f"/runs/{run_id}.md",
        f"/runs/{run_id}/bundle",
        f"/runs/{run_id}/nodes/agent",
        f"/runs/{run_id}/fork?mode=branch&from=1",
        f"/runs/{observed}",
        f"/runs/{observed}.md",
        f"/runs/{observed}/live",
        f"/compare?a={run_id}&b={observed}",
        f"/inbox/{run_id}/gate",
        f"/reviews/queues/{planted.queue_id}",
        f"/workflows/{planted.workflow_id}",
        f"/agents/{planted.agent_id}",
        "/runs",
        "/inbox",
        "/reviews",
        "/fleet",
        f"/fleet/runs/{planted.story.run_id}",
        f"/fleet/agents/{planted.story.agent_id}",
        "/settings",
    ]

    answers = {path: acme.get(path) for path in paths}

    assert {path: a.status_code for path, a in answers.items() if a.status_code != 200} == {}
    assert {p: found for p, a in answers.items() if (found := leaks(a.text, *HIDDEN))} == {}


def test_no_page_repeats_a_credential_of_the_request(acme: Person) -> None:
    sent = {"accept": "text/html"}
    answers = [
        acme.get("/runs", params={"q": TEXT, "tag": TEXT, "workflowId": TEXT, "status": TEXT}),
        acme.get("/compare", params={"a": TEXT, "b": TEXT}),
        acme.get(f"/runs/{CANARIES['openai']}", headers=sent),
        acme.get(f"/{CANARIES['github']}?password={NAMED['password']}", headers=sent),
        acme.get("/reviews/judges", params={"id": TEXT}),
        acme.post("/settings/keys", name=TEXT * 3, role="viewer"),
        acme.post("/settings/keys", name="x", role=TEXT),
        acme.post("/workflows/conformance-identity/start", payload=TEXT),
        acme.post("/reviews/queues/new", name=TEXT, **{"ask.rating": TEXT}),
    ]

    assert [leaks(answer.text + str(answer.headers), *HIDDEN) for answer in answers] == [
        [] for _ in answers
    ]


def test_a_new_key_is_shown_on_its_page_and_masked_on_every_other(acme: Person) -> None:
    answer = acme.post("/settings/keys", name="for Ada", role="viewer")
    key = answer.text.partition("wopr_live_")[2].partition("<")[0]

    assert len(key) > 20
    assert answer.text.count(f"wopr_live_{key}") == 1
    shown = acme.get("/runs", params={"q": f"wopr_live_{key}"})
    assert key not in shown.text


@pytest.mark.parametrize("key", [ACME, VIEWER])
def test_settings_show_limits_and_nothing_about_the_machine(
    signed_in: SignedIn, host: ServedHost, key: str
) -> None:
    text = signed_in(key).get("/settings").text

    assert "largest request" in text
    assert "sqlite:" not in text
    assert "postgresql:" not in text
    assert str(host.data_dir) not in text
    assert f"{socket.gethostname()}-" not in text


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://host/db?password=hunter2hunter2&sslpassword=hunter2hunter2",
        "postgresql://wopr:hunter2hunter2@host/db",
        "host=h user=wopr password=hunter2hunter2 dbname=d",
        "host=h password='hunter2hunter2' user='wopr'",
    ],
)
def test_a_database_address_is_masked_wherever_it_is_repeated(text: str) -> None:
    assert "hunter2" not in Redactor().text(text)
    assert "hunter2" not in repr(Settings(db=text, model_servers=f"x={text}"))
    assert "hunter2" not in Settings(db=text).public_database_url


@pytest.mark.parametrize(
    "text", ['password="abc', "-----BEGIN PRIVATE KEY", "PuTTY-User-Key-File-x"]
)
def test_an_unterminated_secret_is_masked_without_damaging_the_markup(
    acme: Person, text: str
) -> None:
    page = acme.get("/runs", params={"tag": text}).text

    assert html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") not in page
    assert "[REDACTED]" in page
    assert page.rstrip().endswith("</html>")
    other = acme.get("/runs", params={"tag": "no run has it"}).text
    assert page.count("<input") == other.count("<input")

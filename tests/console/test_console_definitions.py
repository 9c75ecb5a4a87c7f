"""Workflows and agents: what is registered, and runs started by a form made from it."""

from __future__ import annotations

import json

import pytest

from tests.console.client import Markup, Person
from tests.console.conftest import SignedIn
from tests.console.samples import PROBE, Belongings
from tests.wire.client import Wire
from tests.wire.definitions import edge, fresh, from_variable, node, variable, workflow
from tests.wire.host import REVIEWER, VIEWER
from wopr.protocol.documents import JsonObject

OPTIONS: JsonObject = {
    "type": "object",
    "properties": {
        "tone": {"enum": ["kind", "firm"], "description": "How it is said."},
        "maxLetters": {"type": "integer", "minimum": 10, "default": 80},
    },
    "required": ["tone"],
}


def manifest(**fields: object) -> JsonObject:
    return {
        "agentId": fresh("private.tests.agent"),
        "persona": "Clerk",
        "modelClass": "writing",
        "systemPrompt": "Keep to the letter of the law.",
        "version": "1.0.0",
    } | fields


def install(wire: Wire, **fields: object) -> str:
    document = manifest(**fields)
    answer = wire.post("/v1/agents", document)
    assert answer.status_code == 201, answer.text
    return str(document["agentId"])


# Starting a run


def run_of(location: str) -> str:
    """The run that an answer leads to."""
    return location.removeprefix("/runs/")


def test_a_run_is_started_by_a_form_made_from_its_inputs(acme: Person, wire: Wire) -> None:
    definition = workflow(
        [node("n", "core.identity", inputs={"read": from_variable("beside")})],
        variables=[
            variable("who", required=True, description="Whom to greet."),
            variable("many", "number"),
            variable("loud", "boolean", defaultValue=False),
            variable("extra", "object"),
        ],
    )
    name = wire.register(definition)

    page = acme.page(f"/workflows/{name}/start")
    answer = acme.post(
        f"/workflows/{name}/start",
        **{
            "inputs.who": "Ada",
            "inputs.many": "2.5",
            "inputs.loud": "true",
            "inputs.extra": '{"a": [1]}',
            "more": '{"beside": 1}',
            "tags": "x, y",
        },
    )

    assert "Whom to greet." in page.text
    found = wire.finished(run_of(answer.headers["location"]))
    given = {"who": "Ada", "many": 2.5, "loud": True, "extra": {"a": [1]}, "beside": 1}
    assert found["inputs"] == given
    assert found["tags"] == ["x", "y"]


def test_a_form_shows_the_defaults_and_what_must_be_given(acme: Person, wire: Wire) -> None:
    variables = [
        variable("who", required=True),
        variable("greeting", defaultValue="Hello"),
        variable("loud", "boolean", defaultValue=True),
        variable("key", sensitive=True, defaultValue="hush"),
    ]
    name = wire.register(workflow([node("n")], variables=variables))

    answer = acme.get(f"/workflows/{name}/start")

    page = Markup(answer.text)
    assert [found["name"] for found in page.all("input", required="")] == ["inputs.who"]
    assert page.all("input", name="inputs.greeting")[0]["value"] == "Hello"
    assert page.all("option", value="true", selected="")
    assert page.all("input", name="inputs.key", type="password")
    assert "hush" not in answer.text


def test_options_are_fields_too_where_the_workflow_declares_them(acme: Person, wire: Wire) -> None:
    name = wire.register(workflow([node("n")], configurableSchema=OPTIONS))

    page = acme.page(f"/workflows/{name}/start")
    answer = acme.post(
        f"/workflows/{name}/start",
        **{"configurable.tone": '"firm"', "configurable.maxLetters": "20", "options": '{"x": 1}'},
    )

    assert "How it is said." in page.text
    assert page.all("input", name="configurable.maxLetters", type="number")[0]["value"] == "80"
    found = wire.finished(run_of(answer.headers["location"]))
    assert found["configurable"] == {"tone": "firm", "maxLetters": 20, "x": 1}


@pytest.mark.parametrize(
    ("form", "field", "told"),
    [
        ({}, "inputs.who", "must be a string"),
        ({"inputs.who": "a", "inputs.many": "x"}, "inputs.many", "must be a number"),
        ({"inputs.who": "a", "inputs.many": "true"}, "inputs.many", "not a boolean"),
        (
            {"inputs.who": "a", "inputs.list": "{}"},
            "inputs.list",
            "must be an array, not an object",
        ),
        ({"inputs.who": "a", "more": "[]"}, "more", "must be a JSON object"),
        ({"inputs.who": "a", "options": "{"}, "options", "must be JSON"),
        ({"inputs.who": "a", "tags": "x" * 300}, "tags", "length"),
        (
            {"inputs.who": "a", "configurable.maxLetters": "3"},
            "configurable.maxLetters",
            "3 is less than the minimum of 10",
        ),
    ],
)
def test_what_does_not_fit_is_said_at_its_field_and_what_was_typed_is_kept(
    acme: Person, wire: Wire, form: dict[str, str], field: str, told: str
) -> None:
    variables = [variable("who", required=True), variable("many", "number")]
    variables += [variable("list", "array")]
    schema = {**OPTIONS, "required": []}
    definition = workflow([node("n")], variables=variables, configurableSchema=schema)
    name = wire.register(definition)

    answer = acme.post(f"/workflows/{name}/start", **form)

    assert answer.status_code == 400
    page = Markup(answer.text)
    invalid = [found for _, found in page.elements if "aria-invalid" in found]
    assert [found["name"] for found in invalid] == [field]
    place = f'id="{invalid[0]["aria-describedby"]}"'
    assert told in answer.text.partition(place)[2].partition("</p>")[0]
    shown = page.text + str(page.elements)
    assert all(value in shown for value in form.values())
    assert wire.document("/v1/runs", params={"workflowId": name})["items"] == []


def test_every_field_that_cannot_be_read_is_named_at_once(acme: Person, wire: Wire) -> None:
    variables = [variable("one", "number"), variable("two", "object")]
    name = wire.register(workflow([node("n")], variables=variables))

    answer = acme.post(f"/workflows/{name}/start", **{"inputs.one": "x", "inputs.two": "{"})

    invalid = [f["name"] for _, f in Markup(answer.text).elements if "aria-invalid" in f]
    assert invalid == ["inputs.one", "inputs.two"]


def test_what_belongs_to_no_field_is_said_on_top(acme: Person, wire: Wire) -> None:
    name = wire.register(workflow([node("n")]))

    answer = acme.post(f"/workflows/{name}/start", options='{"recursionLimit": 0}')

    assert answer.status_code == 400
    assert "configurable.recursionLimit" in answer.text


def test_an_unknown_workflow_cannot_be_started(acme: Person) -> None:
    assert acme.post("/workflows/nothing-like-it/start").status_code == 404


# Workflows


def test_a_workflow_is_shown_as_a_graph_with_inputs_nodes_and_source(
    acme: Person, wire: Wire
) -> None:
    nodes = [node("first", notes="It begins."), node("second", "core.delay", config={"ms": 1})]
    definition = workflow(
        nodes,
        edges=[edge("first", "second")],
        variables=[variable("who", description="Whom.", defaultValue="world")],
        description="What it is for.",
    )
    name = wire.register(definition)

    page = acme.page(f"/workflows/{name}")

    assert len(page.all("path", **{"class": "edge open"})) == 1
    for told in ("What it is for.", "Whom.", "It begins.", "core.delay", "world"):
        assert told in page.text
    source = page.text.partition("Source")[2].strip()
    assert json.loads(source.rpartition("}")[0] + "}") == definition
    assert f"/workflows/{name}/start" in page.links


def test_the_versions_of_a_workflow_are_switched_between(acme: Person, wire: Wire) -> None:
    definition = workflow([node("old")], version="1")
    name = wire.register(definition)
    wire.register(definition | {"version": "2", "nodes": [node("new")]})

    newest = acme.page(f"/workflows/{name}")
    older = acme.page(f"/workflows/{name}?version=1")

    assert f"/workflows/{name}?version=1" in newest.links
    assert f"/workflows/{name}/nodes/new?version=2" in newest.links
    assert f"/workflows/{name}/nodes/old?version=1" in older.links
    assert "Start a run of 2" in older.text
    assert acme.get(f"/workflows/{name}?version=3").status_code == 404


def test_the_source_is_the_definition_as_it_was_registered(acme: Person, wire: Wire) -> None:
    definition = workflow([node("n")], description=PROBE)
    name = wire.register(definition)

    answer = acme.get(f"/workflows/{name}/source")

    assert answer.json() == definition
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_node_of_a_workflow_says_what_it_is_and_where_it_leads(acme: Person, wire: Wire) -> None:
    nodes = [node("first"), node("second", config={}, notes="Twice.")]
    name = wire.register(workflow(nodes, edges=[edge("first", "second")]))

    page = acme.page(f"/workflows/{name}/nodes/second")

    assert "Twice." in page.text
    assert any("/nodes/first" in link for link in page.links)
    assert acme.get(f"/workflows/{name}/nodes/third").status_code == 404


def test_the_recent_runs_of_a_workflow_and_what_people_say_of_them_are_shown(
    acme: Person, wire: Wire
) -> None:
    name = wire.register(workflow([node("n")]))
    run_id = wire.run(name)["runId"]
    for stars in (2, 5):
        signal = {"kind": "rating", "rating": stars}
        wire.post(f"/v1/runs/{run_id}/annotations", {"signal": signal})

    page = acme.page(f"/workflows/{name}")

    assert f"/runs/{run_id}" in page.links
    assert "3.5" in page.text


def test_a_viewer_reads_a_workflow_and_cannot_start_it(
    signed_in: SignedIn, acme_s: Belongings
) -> None:
    page = signed_in(VIEWER).page(f"/workflows/{acme_s.real['workflow_id']}")

    assert not [link for link in page.links if link.endswith("/start")]


# Agents


def test_agents_are_listed_with_what_they_may_do(acme: Person, wire: Wire) -> None:
    agent_id = install(
        wire, label="Scribe", toolAllowlist=["a:b"], confidence={"defaultThreshold": 0.65}
    )

    page = acme.page("/agents")

    assert f"/agents/{agent_id}" in page.links
    for told in ("Scribe", "writing", "65 %"):
        assert told in page.text


def test_an_agent_is_shown_with_tools_threshold_versions_and_runs(acme: Person, wire: Wire) -> None:
    agent_id = install(wire, toolAllowlist=["a:b"], confidence={"defaultThreshold": 0.65})
    newer = manifest(agentId=agent_id, version="2.0.0", confidence={"defaultThreshold": 0.85})
    wire.post("/v1/agents", newer)
    pinned = node("n", agent={"agentId": agent_id, "modelClass": "chat"})
    name = wire.register(workflow([pinned]))
    run_id = wire.run(name)["runId"]

    newest = acme.page(f"/agents/{agent_id}")
    older = acme.page(f"/agents/{agent_id}?version=1.0.0")

    assert "85 %" in newest.text
    assert "It may call none." in newest.text
    assert {f"/workflows/{name}", f"/runs/{run_id}"} <= {*newest.links}
    assert f"/agents/{agent_id}?version=1.0.0" in newest.links
    assert "65 %" in older.text
    assert "a:b" in older.text
    assert acme.get(f"/agents/{agent_id}?version=3").status_code == 404


def test_an_agent_without_a_threshold_of_its_own_shows_the_host_s(acme: Person, wire: Wire) -> None:
    page = acme.page(f"/agents/{install(wire)}")

    assert "the host's default" in page.text


def test_what_a_host_cannot_give_an_agent_is_said(acme: Person, wire: Wire) -> None:
    agent_id = install(wire, requiresCapabilities=["telepathy"])

    page = acme.page(f"/agents/{agent_id}")

    assert "Limited here." in page.text
    assert "telepathy" in page.text


def test_the_feedback_on_an_agent_is_counted(acme: Person, acme_s: Belongings) -> None:
    page = acme.page(f"/agents/{acme_s.agent_id}")

    told = page.text.partition("Feedback of the last 30 days")[2]
    assert "Corrected100" in "".join(told.split())
    assert "Intervened" in told


def test_a_prompt_is_shown_to_those_who_write_manifests_only(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    agent_id = install(wire)
    secret = "Keep to the letter"

    mine = acme.get(f"/agents/{agent_id}/manifest")
    other = signed_in(REVIEWER)

    assert mine.json()["systemPrompt"].startswith(secret)
    assert secret in acme.get(f"/agents/{agent_id}").text
    assert secret not in other.get(f"/agents/{agent_id}").text
    assert other.get(f"/agents/{agent_id}/manifest").status_code == 403

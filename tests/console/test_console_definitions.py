"""Workflows and agents: the registered ones, and runs started with a generated form."""

from __future__ import annotations

import json

import pytest

from tests.console.conftest import SignedIn
from tests.console.samples import PROBE, TenantData
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import edge, fresh, from_variable, node, variable, workflow
from tests.support.host import REVIEWER, VIEWER
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
    """Return the run that a response redirects to."""
    return location.removeprefix("/runs/")


def test_a_run_is_started_with_a_form_generated_from_its_inputs(acme: Person, wire: Wire) -> None:
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


def test_a_form_shows_the_defaults_and_the_required_inputs(acme: Person, wire: Wire) -> None:
    variables = [
        variable("who", required=True),
        variable("greeting", defaultValue="Hello"),
        variable("loud", "boolean", defaultValue=True),
        variable("key", sensitive=True, defaultValue="hush-hush-orchid"),
    ]
    name = wire.register(workflow([node("n")], variables=variables))

    answer = acme.get(f"/workflows/{name}/start")

    page = Markup(answer.text)
    assert [found["name"] for found in page.all("input", required="")] == ["inputs.who"]
    assert page.all("input", name="inputs.greeting")[0]["value"] == "Hello"
    assert page.all("option", value="true", selected="")
    assert page.all("input", name="inputs.key", type="password")
    assert "hush-hush" not in answer.text


def test_options_are_fields_where_the_workflow_declares_them(acme: Person, wire: Wire) -> None:
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
def test_an_invalid_value_is_reported_at_its_field_and_the_typed_text_is_kept(
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


def test_all_unreadable_fields_are_named_together(acme: Person, wire: Wire) -> None:
    variables = [variable("one", "number"), variable("two", "object")]
    name = wire.register(workflow([node("n")], variables=variables))

    answer = acme.post(f"/workflows/{name}/start", **{"inputs.one": "x", "inputs.two": "{"})

    invalid = [f["name"] for _, f in Markup(answer.text).elements if "aria-invalid" in f]
    assert invalid == ["inputs.one", "inputs.two"]


def test_an_error_without_a_field_is_shown_at_the_top(acme: Person, wire: Wire) -> None:
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


def test_the_page_switches_between_the_versions_of_a_workflow(acme: Person, wire: Wire) -> None:
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


def test_the_source_is_the_registered_definition(acme: Person, wire: Wire) -> None:
    definition = workflow([node("n")], description=PROBE)
    name = wire.register(definition)

    answer = acme.get(f"/workflows/{name}/source")

    assert answer.json() == definition
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_node_of_a_workflow_shows_its_type_and_its_edges(acme: Person, wire: Wire) -> None:
    nodes = [node("first"), node("second", config={}, notes="Twice.")]
    name = wire.register(workflow(nodes, edges=[edge("first", "second")]))

    page = acme.page(f"/workflows/{name}/nodes/second")

    assert "Twice." in page.text
    assert any("/nodes/first" in link for link in page.links)
    assert acme.get(f"/workflows/{name}/nodes/third").status_code == 404


def test_recent_runs_of_a_workflow_and_their_feedback_are_shown(acme: Person, wire: Wire) -> None:
    name = wire.register(workflow([node("n")]))
    run_id = wire.run(name)["runId"]
    for stars in (2, 5):
        signal = {"kind": "rating", "rating": stars}
        wire.post(f"/v1/runs/{run_id}/annotations", {"signal": signal})

    page = acme.page(f"/workflows/{name}")

    assert f"/runs/{run_id}" in page.links
    assert "3.5 of 5" in page.text


def test_a_viewer_reads_a_workflow_but_cannot_start_it(
    signed_in: SignedIn, acme_data: TenantData
) -> None:
    page = signed_in(VIEWER).page(f"/workflows/{acme_data.real['workflow_id']}")

    assert not [link for link in page.links if link.endswith("/start")]


# Agents


def test_agents_are_listed_with_their_tools(acme: Person, wire: Wire) -> None:
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
    assert "This agent may not call tools." in newest.text
    assert {f"/workflows/{name}", f"/runs/{run_id}"} <= {*newest.links}
    assert f"/agents/{agent_id}?version=1.0.0" in newest.links
    assert "65 %" in older.text
    assert "a:b" in older.text
    assert acme.get(f"/agents/{agent_id}?version=3").status_code == 404


def test_an_agent_without_a_threshold_shows_the_host_s_default(acme: Person, wire: Wire) -> None:
    page = acme.page(f"/agents/{install(wire)}")

    assert "the host's default" in page.text


def test_a_capability_that_the_host_lacks_is_shown_on_the_agent_s_page(
    acme: Person, wire: Wire
) -> None:
    agent_id = install(wire, requiresCapabilities=["telepathy"])

    page = acme.page(f"/agents/{agent_id}")

    assert "Limited on this host." in page.text
    assert "telepathy" in page.text


def test_the_feedback_on_an_agent_is_counted(acme: Person, acme_data: TenantData) -> None:
    page = acme.page(f"/agents/{acme_data.agent_id}")

    told = page.text.partition("Feedback in the last 30 days")[2]
    assert "Corrected100" in "".join(told.split())
    assert "Intervened" in told


def test_a_prompt_is_shown_only_to_those_who_may_write_manifests(
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

from __future__ import annotations

import pytest

from wopr.agents.manifests import check_manifest
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Refused
from wopr.protocol.manifests import Handoff

GOOD: JsonObject = {
    "agentId": "local.acme.writer",
    "persona": "Writer",
    "modelClass": "writing",
    "systemPrompt": "Write.",
}


def faults(document: Json) -> dict[str, str]:
    """Return the message at each faulty place."""
    with pytest.raises(Refused) as refused:
        check_manifest(document)
    errors = refused.value.details["errors"]
    assert isinstance(errors, list)
    return {error["path"]: error["message"] for error in errors}


def test_a_valid_manifest_is_returned() -> None:
    assert check_manifest(GOOD).agent_id == "local.acme.writer"


def test_all_faults_are_named_together() -> None:
    document = {
        "agentId": "host:writer",
        "persona": "",
        "modelClass": "chat",
        "systemPromptRef": "prompts/writer.md",
        "confidence": {"defaultThreshold": 7},
        "handoff": {"taskSchemaRef": "task.json", "returnSchema": {"type": "nonsense"}},
    }

    assert faults(document).keys() == {
        "agentId",
        "persona",
        "modelClass",
        "systemPromptRef",
        "confidence.defaultThreshold",
        "handoff.taskSchemaRef",
        "handoff.returnSchema",
    }


def test_each_invalid_value_is_named() -> None:
    assert faults(GOOD | {"modelClass": "writting"}) == {
        "modelClass": '"writting" is not one of "classification", "coding", "general", "reasoning", '
        '"research" or "writing"'
    }


def test_an_id_of_the_host_is_refused_with_the_reason() -> None:
    assert (
        "reserved for agents of the host" in faults({**GOOD, "agentId": "host:writer"})["agentId"]
    )


@pytest.mark.parametrize("agent_id", ["core.chat", "acme.x.y", "local.acme.x\n", "local.Acme.x"])
def test_an_id_outside_the_namespaces_is_refused(agent_id: str) -> None:
    assert faults({**GOOD, "agentId": agent_id}).keys() == {"agentId"}


@pytest.mark.parametrize(
    ("changes", "path", "way_out"),
    [
        ({"systemPrompt": None, "systemPromptRef": "p.md"}, "systemPromptRef", "systemPrompt"),
        ({"evalSuiteRef": "e.json"}, "evalSuiteRef", "omit it"),
        ({"handoff": {"taskSchemaRef": "t"}}, "handoff.taskSchemaRef", "taskSchema"),
        ({"handoff": {"returnSchemaRef": "r"}}, "handoff.returnSchemaRef", "returnSchema"),
    ],
)
def test_a_reference_into_a_pack_is_refused_with_an_alternative(
    changes: JsonObject, path: str, way_out: str
) -> None:
    document = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}

    found = faults(document)

    assert found.keys() == {path}
    assert "without packs" in found[path]
    assert way_out in found[path]


def test_exactly_one_system_prompt_is_required() -> None:
    none = {name: value for name, value in GOOD.items() if name != "systemPrompt"}

    assert "exactly one" in faults({**GOOD, "systemPromptRef": "p.md"})["systemPrompt"]
    assert "exactly one" in faults(none)["systemPrompt"]


def test_a_handoff_schema_may_not_refer_to_another_document() -> None:
    schema = {"$ref": "https://example.com/task.json"}

    assert "handoff.taskSchema" in faults({**GOOD, "handoff": {"taskSchema": schema}})


def test_valid_handoff_schemas_are_accepted() -> None:
    schema = {"type": "object", "required": ["topic"]}

    manifest = check_manifest({**GOOD, "handoff": {"taskSchema": schema, "returnSchema": schema}})

    assert isinstance(manifest.handoff, Handoff)
    assert manifest.handoff.task_schema == manifest.handoff.return_schema == schema


@pytest.mark.parametrize("document", [None, [], "text", 7, {}])
def test_a_value_that_is_not_a_manifest_is_refused(document: Json) -> None:
    assert faults(document)


def test_a_model_class_is_mapped_before_it_is_compared() -> None:
    assert check_manifest(GOOD, ["chat"]).model_class == "writing"
    assert check_manifest(GOOD, None).model_class == "writing"

    with pytest.raises(Refused) as refused:
        check_manifest(GOOD, ["reasoning", "code"])

    assert (refused.value.code, refused.value.status) == ("unsupported_model_class", 400)
    assert refused.value.details == {
        "field": "modelClass",
        "modelClass": "chat",
        "supported": ["code", "reasoning"],
    }

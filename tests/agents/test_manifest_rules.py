from __future__ import annotations

import pytest

from wopr.agents.manifests import check_manifest
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Refused
from wopr.protocol.manifests import AgentManifest

MANIFEST: JsonObject = {
    "agentId": "vendor.acme.support.tier1",
    "persona": "Tier one",
    "modelClass": "coding",
    "systemPrompt": "Help.",
}
FULL: JsonObject = {
    "agents": {"supported": True, "memoryBackends": ["long-term"]},
    "memory": {"supported": True, "writable": True},
}


def manifest(**fields: Json) -> AgentManifest:
    return check_manifest(MANIFEST | fields)


@pytest.mark.parametrize(
    ("model_class", "projected"),
    [("coding", "code"), ("writing", "chat"), ("general", "chat"), ("research", "retrieval")],
)
def test_a_class_is_compared_with_the_advertised_ones_after_mapping(
    model_class: str, projected: str
) -> None:
    document = MANIFEST | {"modelClass": model_class}

    assert check_manifest(document, [projected]).model_class == model_class
    with pytest.raises(Refused) as refused:
        check_manifest(document, ["vision"])
    assert refused.value.code == "unsupported_model_class"
    assert refused.value.details["modelClass"] == projected
    assert refused.value.details["supported"] == ["vision"]


def test_a_host_without_a_list_of_classes_accepts_every_class() -> None:
    assert check_manifest(MANIFEST, None).agent_id == MANIFEST["agentId"]

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from wopr.protocol.discovery.agent_families import (
    Agents,
    AiProviders,
    Attribution,
    ExecutionModel,
    MultiAgent,
)
from wopr.protocol.discovery.document import (
    FAMILIES,
    Capabilities,
    DiscoveryRoot,
    encode_discovery,
    etag,
)
from wopr.protocol.discovery.families import Auth, Authorization, Kahn
from wopr.protocol.documents import JsonObject

if TYPE_CHECKING:
    from tests.protocol.conftest import Official, Sample

LEAST = Capabilities(supported_envelopes=["clarification.request"])
OUTSIDE_THE_SCHEMA = {
    "orchestrator",
    "dispatch",
    "runs",
    "replay",
    "debugBundle",
    "restTransport",
    "kahn",
}


@pytest.fixture
def full(sample: type[Sample]) -> Capabilities:
    return msgspec.convert(sample(Capabilities, full=True).document, Capabilities)


def decoded(root: Capabilities) -> JsonObject:
    read: JsonObject = json.loads(encode_discovery(root))
    return read


def test_the_smallest_document_has_the_required_fields_and_the_protocol_defaults() -> None:
    assert decoded(LEAST) == {
        "protocolVersion": "1.0",
        "supportedEnvelopes": ["clarification.request"],
        "schemaVersions": {},
        "limits": {"clarificationRounds": 3, "schemaRounds": 2, "envelopesPerTurn": 5},
        "capabilities": {},
    }


def test_the_mirror_repeats_every_family_and_no_base_field(full: Capabilities) -> None:
    written = decoded(full)

    mirror = written.pop("capabilities")

    assert mirror.keys() == set(FAMILIES)
    assert all(mirror[name] == written[name] for name in FAMILIES)
    assert not mirror.keys() & set(DiscoveryRoot.__struct_encode_fields__)
    # RFC 0056 names feedback so; it is the only family with a second name.
    assert written.pop("host") == {"feedback": written["feedback"]}
    assert written.keys() == set(FAMILIES) | set(DiscoveryRoot.__struct_encode_fields__)


def test_an_absent_family_is_in_neither_place() -> None:
    written = decoded(msgspec.structs.replace(LEAST, conversation_primitive=True))

    assert written["conversationPrimitive"] is True
    assert written["capabilities"] == {"conversationPrimitive": True}


def test_the_smallest_and_the_full_document_are_valid_by_the_published_schema(
    full: Capabilities, official: Official
) -> None:
    assert official.fault("capabilities.schema.json", decoded(LEAST)) is None
    assert official.fault("capabilities.schema.json", decoded(full)) is None


def test_families_are_as_closed_as_the_published_ones(official: Official) -> None:
    published, _ = official.find("capabilities.schema.json")
    shapes = msgspec.json.schema(Capabilities)["$defs"]

    differing = [
        name
        for name in FAMILIES
        if name not in OUTSIDE_THE_SCHEMA
        and published["properties"][name]["type"] == "object"
        and closed(published["properties"][name])
        != closed(shapes[shapes["Capabilities"]["properties"][name]["$ref"].rsplit("/", 1)[1]])
    ]

    assert differing == []
    assert set(FAMILIES) - published["properties"].keys() == OUTSIDE_THE_SCHEMA


def closed(shape: JsonObject) -> bool:
    return shape.get("additionalProperties") is False


def test_an_unknown_limit_is_refused_by_name() -> None:
    limits = {"clarificationRounds": 1, "schemaRounds": 1, "envelopesPerTurn": 1, "intruder": 1}

    with pytest.raises(msgspec.ValidationError, match="intruder"):
        msgspec.convert({"supportedEnvelopes": [], "limits": limits}, Capabilities)


def test_a_duplicate_in_a_list_is_refused_by_path() -> None:
    root = msgspec.structs.replace(LEAST, auth=Auth(profiles=["bearer", "bearer"]))

    with pytest.raises(ValueError, match=r"\$\.auth\.profiles"):
        encode_discovery(root)


def test_a_three_part_protocol_version_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="protocolVersion"):
        msgspec.convert({"protocolVersion": "1.0.0", "supportedEnvelopes": []}, Capabilities)


def test_an_experimental_tier_needs_its_end_date() -> None:
    with pytest.raises(ValueError, match="experimentalUntil"):
        ExecutionModel(supported=True, version=1, tier="experimental")


def test_fail_open_authorization_cannot_be_advertised() -> None:
    with pytest.raises(ValueError, match="failClosed"):
        Authorization(supported=True, fail_closed=False)


def test_unsupported_attribution_cannot_be_advertised() -> None:
    with pytest.raises(ValueError, match="attribution"):
        Attribution(supported=False)


def test_byok_is_accepted_for_supported_providers_only() -> None:
    with pytest.raises(ValueError, match="acme"):
        AiProviders(supported=["openai"], byok=["acme", "openai"])


def test_the_multi_agent_and_fleet_families_use_the_protocols_names() -> None:
    root = msgspec.structs.replace(
        LEAST,
        agents=Agents(supported=True, dispatch_mapping=True),
        multi_agent=MultiAgent(
            execution_model=ExecutionModel(
                supported=True, version=2, confidence_escalation_interrupt_kind="approval"
            )
        ),
        kahn=Kahn(supported=True, ingest_url="/v1/kahn/runs/{runId}", max_body_bytes=1),
    )

    families = decoded(root)["capabilities"]

    assert families == {
        "agents": {"supported": True, "dispatchMapping": True},
        "multiAgent": {
            "executionModel": {
                "supported": True,
                "version": 2,
                "confidenceEscalationInterruptKind": "approval",
            }
        },
        "kahn": {"supported": True, "ingestUrl": "/v1/kahn/runs/{runId}", "maxBodyBytes": 1},
    }


def test_the_entity_tag_is_stable_and_changes_with_the_document() -> None:
    other = msgspec.structs.replace(LEAST, conversation_primitive=True)

    assert etag(encode_discovery(LEAST)) == etag(encode_discovery(LEAST))
    assert etag(encode_discovery(LEAST)) != etag(encode_discovery(other))
    assert etag(b"").startswith('"')
    assert etag(b"").endswith('"')

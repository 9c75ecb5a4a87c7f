from __future__ import annotations

import pytest

from tests.support.agent_definitions import DONE, MOCK_AGENT, SUPERVISOR, supervised
from tests.support.definitions import node, workflow
from wopr.nodes.builtin import builtin_types
from wopr.nodes.registry import NodeRegistry
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import CapabilityRequired, Refused
from wopr.runs.definitions.checks import GATED_TYPES, check_definition

RULES: JsonObject = {"rules": [{"when": "true", "decision": DONE}]}


def registry(*without: str, with_conformance: bool = True) -> NodeRegistry:
    types = builtin_types(with_conformance=with_conformance)
    return NodeRegistry(each for each in types if each.type_id not in without)


@pytest.mark.parametrize(
    ("type_id", "capability"),
    [
        ("core.conversationGate", "conversationPrimitive"),
        (SUPERVISOR, "agents.orchestrator"),
        ("core.dispatch", "agents.dispatch"),
        (MOCK_AGENT, "conformance.mockAgent"),
    ],
)
def test_a_host_without_a_gated_type_refuses_it_with_the_required_capability(
    type_id: str, capability: str
) -> None:
    # Other faults of the definition must not hide it.
    definition = workflow([node("gated", type_id, config={"stray": 1})], id="conformance-gated")

    with pytest.raises(CapabilityRequired) as refused:
        check_definition(definition, registry(type_id))

    assert refused.value.code == "capability_required"
    assert refused.value.status == 400
    assert refused.value.details == {
        "requiredCapability": capability,
        "offendingTypeId": type_id,
        "nodeId": "gated",
    }


def test_every_gated_type_is_covered() -> None:
    assert set(GATED_TYPES) == {
        "core.conversationGate",
        SUPERVISOR,
        "core.dispatch",
        MOCK_AGENT,
    }


def test_a_supervisor_with_rules_works_without_conformance() -> None:
    production = registry(with_conformance=False)

    checked = check_definition(supervised(supervisor=RULES) | {"id": "helpdesk"}, production)

    assert checked.id == "helpdesk"


def test_a_loop_of_supervisor_and_dispatch_is_a_valid_cycle() -> None:
    backwards = supervised(supervisor=RULES) | {"id": "helpdesk"}
    backwards["nodes"] = list(reversed(backwards["nodes"]))

    assert check_definition(backwards, registry(with_conformance=False)).id == "helpdesk"


def test_conformance_authors_need_a_host_with_conformance_workflows() -> None:
    with pytest.raises(Refused) as refused:
        check_definition(
            supervised(DONE),
            registry(MOCK_AGENT, with_conformance=False),
            may_author_conformance=True,
        )

    assert refused.value.details["requiredCapability"] == "conformance.mockAgent"

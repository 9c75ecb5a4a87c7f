from __future__ import annotations

import msgspec
import pytest

from wopr.agents.registry import AgentRegistry, is_provided
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Conflict, NotFound, Refused
from wopr.store.port import SHARED, Store

pytestmark = pytest.mark.anyio

T0 = 1_700_000_000_000
WRITER = "local.acme.writer"
ADVERTISED: JsonObject = {"agents": {"modelClasses": ["chat", "code"]}}


class Clock:
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def agents(store: Store, clock: Clock) -> AgentRegistry:
    return AgentRegistry(store, clock, ADVERTISED)


def manifest(agent_id: str = WRITER, version: str = "1", **changes: Json) -> JsonObject:
    least = {
        "agentId": agent_id,
        "version": version,
        "persona": "Writer",
        "modelClass": "writing",
        "systemPrompt": "Write.",
    }
    return {**least, **changes}


def threshold(value: float) -> JsonObject:
    return {"confidence": {"defaultThreshold": value}}


async def test_registering_the_same_manifest_twice_stores_it_once(agents: AgentRegistry) -> None:
    first, is_new = await agents.register("acme", manifest())
    again, is_new_again = await agents.register("acme", manifest())

    assert (is_new, is_new_again) == (True, False)
    assert first.manifest == again.manifest


async def test_other_content_needs_another_version(agents: AgentRegistry) -> None:
    await agents.register("acme", manifest())

    with pytest.raises(Conflict, match="new version"):
        await agents.register("acme", manifest(persona="Other"))

    await agents.register("acme", manifest(version="2", persona="Other"))
    assert (await agents.agent("acme", WRITER)).manifest.persona == "Other"
    assert (await agents.agent("acme", WRITER, "1")).manifest.persona == "Writer"


async def test_a_model_class_that_is_not_advertised_cannot_be_installed(
    agents: AgentRegistry,
) -> None:
    with pytest.raises(Refused) as refused:
        await agents.register("acme", manifest(modelClass="research"))

    assert refused.value.code == "unsupported_model_class"
    with pytest.raises(NotFound):
        await agents.agent("acme", WRITER)


async def test_lookups_do_not_wait_once_the_agent_is_loaded(
    store: Store, agents: AgentRegistry
) -> None:
    writer = manifest(toolAllowlist=["mcp:search"], **threshold(0.9))
    await AgentRegistry(store, Clock(), ADVERTISED).register("acme", writer)
    assert agents.threshold("acme", WRITER) is None

    await agents.load("acme")

    assert agents.threshold("acme", WRITER) == 0.9
    assert agents.allowlist("acme", WRITER) == frozenset({"mcp:search"})


async def test_an_agent_without_a_threshold_or_a_list_has_none(agents: AgentRegistry) -> None:
    await agents.register("acme", manifest())

    assert agents.threshold("acme", WRITER) is None
    assert agents.allowlist("acme", WRITER) == frozenset()
    assert agents.threshold("acme", "local.acme.unknown") is None
    assert agents.allowlist("acme", "local.acme.unknown") is None


async def test_a_tenant_s_agent_hides_a_shared_one_from_that_tenant_only(
    agents: AgentRegistry,
) -> None:
    await agents.register(SHARED, manifest(**threshold(0.8)))
    await agents.register("acme", manifest(**threshold(0.3)))
    await agents.load("globex")

    assert agents.threshold("acme", WRITER) == 0.3
    assert agents.threshold("globex", WRITER) == 0.8
    assert [entry.confidence_threshold for entry in (await agents.inventory("acme")).agents] == [
        0.3
    ]


async def test_another_tenant_s_agent_is_unknown(agents: AgentRegistry) -> None:
    await agents.register("acme", manifest(**threshold(0.3)))
    await agents.load("globex")

    assert agents.threshold("globex", WRITER) is None
    assert (await agents.inventory("globex")).agents == []
    with pytest.raises(NotFound):
        await agents.agent("globex", WRITER)


async def test_a_run_keeps_the_manifest_that_it_started_with(
    agents: AgentRegistry, clock: Clock
) -> None:
    await agents.register("acme", manifest(version="1", **threshold(0.1)))
    clock.now = T0 + 10
    await agents.register("acme", manifest(version="2", **threshold(0.2)))

    assert agents.threshold("acme", WRITER) == 0.2
    assert agents.threshold("acme", WRITER, at=T0 + 10) == 0.2
    assert agents.threshold("acme", WRITER, at=T0 + 9) == 0.1
    assert agents.threshold("acme", WRITER, at=T0 - 1) is None
    assert agents.threshold("acme", WRITER, version="1") == 0.1
    assert agents.threshold("acme", WRITER, version="3") is None


async def test_any_number_of_manifests_is_loaded_and_listed_by_id(
    store: Store, agents: AgentRegistry
) -> None:
    other = AgentRegistry(store, Clock(), ADVERTISED)
    for n in range(230):
        await other.register("acme", manifest(f"local.acme.w{229 - n:03}"))

    inventory = await agents.inventory("acme")

    assert inventory.total == 230
    names = [entry.agent_id for entry in inventory.agents]
    assert names == sorted(names)


async def test_the_inventory_shows_no_prompt_and_no_schema(agents: AgentRegistry) -> None:
    secret = "the prompt that nobody is shown"
    schema = {"title": secret}
    await agents.register(
        "acme", manifest(systemPrompt=secret, handoff={"taskSchema": schema}, label="W")
    )

    [entry] = (await agents.inventory("acme")).agents

    assert secret.encode() not in msgspec.json.encode(entry)
    assert entry.has_handoff_schemas
    assert (entry.label, entry.pack_name, entry.pack_version) == ("W", "local.acme", "1")


async def test_missing_requirements_of_an_agent_are_shown(store: Store) -> None:
    poor = AgentRegistry(store, Clock(), {"memory": {"supported": False, "writable": False}})
    document = manifest(
        requiresCapabilities=["host.workspace", "memory"],
        promptLibraryRef="acme",
        memoryShape={"scratchpad": True, "longTerm": True},
    )
    await poor.register("acme", document)

    [entry] = (await poor.inventory("acme")).agents

    assert entry.degraded == ["host.workspace", "memory", "prompts"]
    assert entry.memory_degraded is True
    assert entry.degraded_memory_dimensions == ["read", "write", "long-term-durability"]


async def test_an_agent_with_all_requirements_is_not_degraded(store: Store) -> None:
    advertised = {
        "memory": {"supported": True, "writable": True},
        "agents": {"memoryBackends": ["long-term"]},
        "prompts": {"supported": True},
    }
    rich = AgentRegistry(store, Clock(), advertised)
    await rich.register(
        "acme",
        manifest(
            requiresCapabilities=["memory.writable"],
            promptOverrides={"user": "prompt:ask"},
            memoryShape={"scratchpad": True, "conversation": True, "longTerm": True},
        ),
    )

    [entry] = (await rich.inventory("acme")).agents

    shown = msgspec.to_builtins(entry)
    assert not {"degraded", "memoryDegraded", "degradedMemoryDimensions"} & shown.keys()


async def test_handoff_schemas_are_compiled(agents: AgentRegistry) -> None:
    installed, _ = await agents.register(
        "acme", manifest(handoff={"taskSchema": {"required": ["topic"]}})
    )

    assert installed.task_schema is not None
    assert not installed.task_schema.violations({"topic": 1})
    assert installed.task_schema.violations({})
    assert installed.return_schema is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, True),
        ({"supported": True}, True),
        ({"supported": False}, False),
        (True, True),
        (False, False),
        (["x"], True),
        ([], False),
        (0, True),
    ],
)
def test_a_capability_is_provided_unless_it_is_switched_off(value: Json, expected: bool) -> None:
    assert is_provided("a.b", {"a": {"b": value}}) is expected
    assert not is_provided("a.c", {"a": {"b": value}})

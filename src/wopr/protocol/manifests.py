"""Agent manifests, and the inventory, which shows them without their prompts."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from wopr.protocol.agents import ModelClass
from wopr.protocol.documents import UNSET, Closed, JsonObject, NonEmpty, Unset
from wopr.protocol.events.model import PromptRef
from wopr.protocol.events.values import DistinctWords, require_distinct

DEFAULT_VERSION: Final = "1.0.0"
# The prefix of the ids of the host's agents. A manifest cannot have it.
HOST_PREFIX: Final = "host:"

ManifestModelClass = Literal[
    "reasoning", "writing", "coding", "research", "classification", "general"
]
ManifestId = Annotated[
    str,
    msgspec.Meta(
        pattern=(
            r"^(core|vendor|community|private|local)\.[a-z][a-z0-9_-]*(\.[a-z][a-zA-Z0-9_-]*)+$"
        ),
        min_length=3,
        max_length=256,
    ),
]
Threshold = Annotated[float, msgspec.Meta(ge=0, le=1)]
_LibraryId = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,127}$")]
_Unique = msgspec.Meta(extra_json_schema={"uniqueItems": True})

# The class in an AgentRef for each class of a manifest.
MODEL_CLASSES: Final[dict[ManifestModelClass, ModelClass]] = {
    "reasoning": "reasoning",
    "writing": "chat",
    "coding": "code",
    "research": "retrieval",
    "classification": "classification",
    "general": "chat",
}


class MemoryShape(Closed, frozen=True, kw_only=True):
    """The kinds of memory that the agent uses."""

    scratchpad: bool | Unset = UNSET
    conversation: bool | Unset = UNSET
    long_term: bool | Unset = UNSET


class Confidence(Closed, frozen=True, kw_only=True):
    """The confidence threshold of the agent's decisions."""

    default_threshold: Threshold | Unset = UNSET


class Handoff(Closed, frozen=True, kw_only=True):
    """Schemas of an agent's handoff.

    `taskSchema` and `returnSchema` are extensions of this host: inline schemas instead of the two
    references, for manifests without a pack.
    """

    task_schema_ref: NonEmpty | Unset = UNSET
    return_schema_ref: NonEmpty | Unset = UNSET
    task_schema: JsonObject | Unset = UNSET
    return_schema: JsonObject | Unset = UNSET


class PromptTarget(Closed, frozen=True, kw_only=True):
    """A reference to a prompt template by its parts."""

    template_id: _LibraryId
    library_id: _LibraryId | Unset = UNSET
    version: (
        Annotated[
            str,
            msgspec.Meta(pattern=r"^\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?$"),
        ]
        | Unset
    ) = UNSET
    variable_overrides: JsonObject | Unset = UNSET


class PromptOverrides(Closed, frozen=True, kw_only=True):
    """Prompts that the agent prefers, by kind."""

    system: PromptRef | PromptTarget | Unset = UNSET
    user: PromptRef | PromptTarget | Unset = UNSET
    few_shot: PromptRef | PromptTarget | Unset = msgspec.field(default=UNSET, name="few-shot")
    schema_hint: PromptRef | PromptTarget | Unset = msgspec.field(default=UNSET, name="schema-hint")


class AgentManifest(Closed, frozen=True, kw_only=True):
    """The definition of an agent.

    `version` is an extension of this host: the version of the pack.
    """

    agent_id: ManifestId
    persona: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    model_class: ManifestModelClass
    version: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = DEFAULT_VERSION
    system_prompt: NonEmpty | Unset = UNSET
    system_prompt_ref: NonEmpty | Unset = UNSET
    tool_allowlist: list[NonEmpty] | Unset = UNSET
    requires_capabilities: DistinctWords | Unset = UNSET
    memory_shape: MemoryShape | Unset = UNSET
    confidence: Confidence | Unset = UNSET
    handoff: Handoff | Unset = UNSET
    label: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | Unset = UNSET
    description: Annotated[str, msgspec.Meta(max_length=500)] | Unset = UNSET
    eval_suite_ref: NonEmpty | Unset = UNSET
    prompt_library_ref: _LibraryId | Unset = UNSET
    prompt_overrides: PromptOverrides | Unset = UNSET

    def __post_init__(self) -> None:
        if (self.system_prompt is UNSET) == (self.system_prompt_ref is UNSET):
            raise ValueError("a manifest has either systemPrompt or systemPromptRef")
        require_distinct("requiresCapabilities", self.requires_capabilities)

    @property
    def pack_name(self) -> str:
        """Return the pack of the agent: its id without the last part."""
        return self.agent_id.rpartition(".")[0]

    @property
    def threshold(self) -> float | None:
        """Return the confidence below which decisions are escalated, or None."""
        if isinstance(self.confidence, Unset) or isinstance(
            self.confidence.default_threshold, Unset
        ):
            return None
        return self.confidence.default_threshold

    @property
    def tools(self) -> frozenset[str]:
        """Return the tools that the agent may call; none without a list."""
        return (
            frozenset()
            if isinstance(self.tool_allowlist, Unset)
            else frozenset(self.tool_allowlist)
        )


class AgentInventoryEntry(Closed, frozen=True, kw_only=True):
    """An installed agent in the inventory, without prompts, schemas and credentials."""

    agent_id: str
    persona: str
    label: str
    model_class: str
    pack_name: str
    pack_version: str
    tool_allowlist: list[str]
    has_handoff_schemas: bool
    description: str | Unset = UNSET
    memory_shape: MemoryShape | Unset = UNSET
    confidence_threshold: Threshold | Unset = UNSET
    degraded: list[str] | Unset = UNSET
    memory_degraded: bool | Unset = UNSET
    degraded_memory_dimensions: (
        Annotated[list[Literal["read", "write", "long-term-durability"]], _Unique] | Unset
    ) = UNSET


class AgentInventoryResponse(Closed, frozen=True, kw_only=True):
    """All installed agents that the caller can use, by id."""

    agents: list[AgentInventoryEntry]
    total: Annotated[int, msgspec.Meta(ge=0)]

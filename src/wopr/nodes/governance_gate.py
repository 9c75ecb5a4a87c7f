"""`core.openwop.governance.approvalGate`: a gate that only a role or a scope may open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from wopr.engine.interrupts import GOVERNANCE, GovernanceRule
from wopr.engine.outcome import Completed, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.gates import answer_schema, answer_schema_faults
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, JsonObject, NonEmpty, Unset


class Override(Closed, frozen=True, kw_only=True):
    """Who may open the gate from outside; it is on the record in any case."""

    required_role: NonEmpty
    audited: bool = True


class GovernanceGateConfig(Closed, frozen=True, kw_only=True):
    """Who decides, how many of them it takes, and what an override may do."""

    title: NonEmpty = "Governance approval"
    required_role: NonEmpty | Unset = UNSET
    required_scope: NonEmpty | Unset = UNSET
    quorum: Annotated[int, msgspec.Meta(ge=1)] = 1
    override: Override | Unset = UNSET
    override_bypasses_quorum: bool = False
    timeout_sec: Annotated[int, msgspec.Meta(ge=0)] = 0
    resume_schema: JsonObject | Unset = UNSET

    @staticmethod
    def known_inputs(_: JsonObject) -> tuple[str, ...]:
        """The inputs that the node reads."""
        return ("artifact",)

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name what keeps the schema of answers from being used."""
        yield from answer_schema_faults("resumeSchema", config.get("resumeSchema"))

    def __post_init__(self) -> None:
        if self.required_role is UNSET and self.required_scope is UNSET:
            raise ValueError("requiredRole or requiredScope is needed")


@node("core.openwop.governance.approvalGate")
def governance_gate(ctx: NodeContext, config: GovernanceGateConfig, inputs: JsonObject) -> Outcome:
    """Wait until those whom the config entitles have granted; a rejection sends the work back."""
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if isinstance(answer, Unset):
        return _ask(config, inputs, key)
    passed = {"artifact": inputs["artifact"]} if "artifact" in inputs else {}
    return Completed({"decision": "granted", "approved": True, **passed})


def _ask(config: GovernanceGateConfig, inputs: JsonObject, key: str) -> Suspended:
    override = config.override
    rule = GovernanceRule(
        required_role=config.required_role,
        required_scope=config.required_scope,
        override_role=UNSET if isinstance(override, Unset) else override.required_role,
    )
    data: JsonObject = {
        "artifactId": key,
        "artifactType": "governance",
        "title": config.title,
        "actions": ["accept", "reject"],
        "requiredApprovals": config.quorum,
        "overrideBypassesQuorum": config.override_bypasses_quorum,
        GOVERNANCE: msgspec.to_builtins(rule),
    }
    if "artifact" in inputs:
        data["artifactData"] = inputs["artifact"]
    return Suspended(
        kind="approval",
        key=key,
        data=data,
        timeout_ms=config.timeout_sec * 1000,
        resume_schema=answer_schema("resumeSchema", config.resume_schema),
    )

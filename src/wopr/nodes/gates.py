"""Gates: nodes that wait for a person or another system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from wopr.engine.interrupts import GOVERNANCE, GovernanceRule
from wopr.engine.outcome import Completed, NodeFailure, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    NonEmpty,
    Unset,
    is_object,
    objects_in,
)
from wopr.protocol.interrupts import (
    ApprovalAction,
    ApprovalData,
    Audience,
    ClarificationData,
    InterruptKind,
    InterruptPayload,
    Question,
)
from wopr.protocol.json_schema.size import fixed_faults, measure
from wopr.protocol.json_schema.validation import schema_faults

TimeoutMs = Annotated[int, msgspec.Meta(ge=0)]


def answer_schema_faults(path: str, schema: Json) -> Iterator[tuple[str, str]]:
    """Yield the faults of a schema of answers in a definition.

    The config types do not check the schema: definitions that an earlier version registered must
    decode, so that their runs can continue or fail with a reason.
    """
    if is_object(schema):
        for fault in schema_faults(path, schema):
            yield fault.path, fault.message


def answer_schema(path: str, schema: JsonObject | Unset) -> JsonObject | None:
    """Return the schema of answers, or None. Raises `NodeFailure` if it is too large."""
    if isinstance(schema, Unset):
        return None
    for fault in fixed_faults(measure(schema)):
        raise NodeFailure(f"config.{path}: {fault}", code="validation_error", retryable=False)
    return schema


class ApprovalGateConfig(Document, frozen=True, kw_only=True):
    """The subject of the approval, the approvers and the possible actions."""

    title: NonEmpty
    description: str | Unset = UNSET
    actions: Annotated[list[ApprovalAction], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["accept", "reject"]
    )
    artifact_id: NonEmpty | Unset = UNSET
    artifact_type: NonEmpty = "approval"
    required_approvals: Annotated[int, msgspec.Meta(ge=1)] = 1
    rejection_policy: Literal["single-veto", "majority"] = "single-veto"
    approvers_list: list[str] = []
    approver_role_refs: list[str] = []
    approver_group_refs: list[str] = []
    audience: Audience | Unset = UNSET
    profile: str | Unset = UNSET
    timeout_ms: TimeoutMs = 0

    @staticmethod
    def known_inputs(_: JsonObject) -> tuple[str, ...]:
        """Return the inputs that the node reads."""
        return ("artifact",)

    def __post_init__(self) -> None:
        if len(set(self.actions)) != len(self.actions):
            raise ValueError("actions must not name an action twice")
        if self.approver_group_refs and not (self.approvers_list or self.approver_role_refs):
            raise ValueError(_NO_GROUPS)


_NO_GROUPS = (
    "this host has no groups, so no one could approve: "
    "add approversList or approverRoleRefs to approverGroupRefs"
)


@node("core.approvalGate")
def approval_gate(ctx: NodeContext, config: ApprovalGateConfig, inputs: JsonObject) -> Outcome:
    """Wait for an approval of the input `artifact`."""
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if isinstance(answer, Unset):
        return _approval_interrupt(config, inputs, key)
    action = answer.get("action")
    if action == "reject":
        raise NodeFailure(f"{config.title}: rejected", code="interrupt_rejected", retryable=False)
    outputs: JsonObject = {"action": action, "approved": True}
    if "editedArtifactData" in answer:
        return Completed(outputs | {"artifact": answer["editedArtifactData"]})
    return Completed(outputs | ({"artifact": inputs["artifact"]} if "artifact" in inputs else {}))


def _approval_interrupt(config: ApprovalGateConfig, inputs: JsonObject, key: str) -> Suspended:
    artifact_id = key if isinstance(config.artifact_id, Unset) else config.artifact_id
    data: JsonObject = {
        "artifactId": artifact_id,
        "artifactType": config.artifact_type,
        "title": config.title,
        "actions": config.actions,
        "requiredApprovals": config.required_approvals,
        "rejectionPolicy": config.rejection_policy,
    }
    if not isinstance(config.description, Unset):
        data["description"] = config.description
    if not isinstance(config.audience, Unset):
        data["audience"] = msgspec.to_builtins(config.audience)
    named = {
        "approversList": config.approvers_list,
        "approverRoleRefs": config.approver_role_refs,
        "approverGroupRefs": config.approver_group_refs,
    }
    data |= {member: names for member, names in named.items() if names}
    if "artifact" in inputs:
        data["artifactData"] = inputs["artifact"]
    return Suspended(kind="approval", key=key, data=data, timeout_ms=config.timeout_ms)


class ClarificationGateConfig(Closed, frozen=True, kw_only=True):
    """The questions."""

    questions: Annotated[list[Question], msgspec.Meta(min_length=1)]
    context_type: str | Unset = UNSET
    timeout_ms: TimeoutMs = 0

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the faults of the schemas of the questions."""
        yield from _question_faults("questions", config)

    def __post_init__(self) -> None:
        _check_questions(self.questions)


def _question_faults(path: str, container: JsonObject) -> Iterator[tuple[str, str]]:
    for index, question in enumerate(objects_in(container, "questions")):
        yield from answer_schema_faults(f"{path}.{index}.schema", question.get("schema"))


def _check_questions(questions: list[Question]) -> None:
    """Raise `ValueError` for questions with the same id."""
    if len({question.id for question in questions}) != len(questions):
        raise ValueError("two questions have the same id")


@node("core.clarificationGate")
def clarification_gate(
    ctx: NodeContext, config: ClarificationGateConfig, inputs: JsonObject
) -> Outcome:
    """Wait for the answers to the questions."""
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        return Completed({"answers": answer["answers"]})
    for index, question in enumerate(config.questions):
        answer_schema(f"questions.{index}.schema", question.schema)
    data: JsonObject = {"questions": msgspec.to_builtins(config.questions)}
    if not isinstance(config.context_type, Unset):
        data["contextType"] = config.context_type
    return Suspended(kind="clarification", key=key, data=data, timeout_ms=config.timeout_ms)


class InterruptConfig(Closed, frozen=True, kw_only=True):
    """An interrupt of any kind."""

    kind: InterruptKind
    data: JsonObject
    timeout_ms: TimeoutMs = 0
    resume_schema: JsonObject | Unset = UNSET

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the faults of the schemas of answers."""
        yield from answer_schema_faults("resumeSchema", config.get("resumeSchema"))
        data = config.get("data")
        if config.get("kind") == "clarification" and is_object(data):
            yield from _question_faults("data.questions", data)

    def __post_init__(self) -> None:
        if self.kind == "low-confidence":
            raise ValueError("only the host creates interrupts of the kind low-confidence")
        if self.kind.startswith("conversation."):
            raise ValueError("use core.conversationGate for a conversation")
        data = InterruptPayload(kind=self.kind, key="checked", data=self.data).typed_data()
        if isinstance(data, ClarificationData):
            _check_questions(data.questions)
        if isinstance(data, ApprovalData) and _names_only_groups(data):
            raise ValueError(_NO_GROUPS)


def _names_only_groups(data: ApprovalData) -> bool:
    groups, named, roles = data.approver_group_refs, data.approvers_list, data.approver_role_refs
    has_others = any(not isinstance(names, Unset) and names for names in (named, roles))
    return not isinstance(groups, Unset) and bool(groups) and not has_others


@node("core.interrupt")
def interrupt(ctx: NodeContext, config: InterruptConfig, inputs: JsonObject) -> Outcome:
    """Suspend with the interrupt of the config. The answer becomes the outputs."""
    key = ctx.interrupt_key()
    answer: Json = ctx.answer(key)
    if not isinstance(answer, Unset):
        return Completed(answer if is_object(answer) else {"value": answer})
    if config.kind == "clarification":
        for index, question in enumerate(objects_in(config.data, "questions")):
            answer_schema(f"data.questions.{index}.schema", question.get("schema", UNSET))
    return Suspended(
        kind=config.kind,
        key=key,
        data=config.data,
        timeout_ms=config.timeout_ms,
        resume_schema=answer_schema("resumeSchema", config.resume_schema),
    )


class Override(Closed, frozen=True, kw_only=True):
    """The role that may override the gate. An override is always audited."""

    required_role: NonEmpty
    audited: bool = True


class GovernanceGateConfig(Closed, frozen=True, kw_only=True):
    """Who decides, the quorum, and the override."""

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
        """Return the inputs that the node reads."""
        return ("artifact",)

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the faults of the schema of answers."""
        yield from answer_schema_faults("resumeSchema", config.get("resumeSchema"))

    def __post_init__(self) -> None:
        if self.required_role is UNSET and self.required_scope is UNSET:
            raise ValueError("requiredRole or requiredScope is needed")


@node("core.openwop.governance.approvalGate")
def governance_gate(ctx: NodeContext, config: GovernanceGateConfig, inputs: JsonObject) -> Outcome:
    """Wait until enough authorized principals grant the gate. A rejection repeats the work."""
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if isinstance(answer, Unset):
        return _governance_interrupt(config, inputs, key)
    passed = {"artifact": inputs["artifact"]} if "artifact" in inputs else {}
    return Completed({"decision": "granted", "approved": True, **passed})


def _governance_interrupt(config: GovernanceGateConfig, inputs: JsonObject, key: str) -> Suspended:
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


HOST_SPEAKER = "host:conversation"


class ConversationGateConfig(Closed, frozen=True, kw_only=True):
    """The opening prompt, and the schema of a turn.

    With `mockAutoResume` the host gives `turnCount` scripted turns. Only conformance workflows may
    set it.
    """

    lifecycle: Literal["open-exchange-close"] = "open-exchange-close"
    prompt: NonEmpty = "How should the run continue?"
    turn_schema: JsonObject | Unset = UNSET
    turn_count: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    mock_auto_resume: bool = False
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 0

    @staticmethod
    def known_inputs(_: JsonObject) -> tuple[str, ...]:
        """Return the inputs that the node reads."""
        return ("prompt",)

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the faults of the schema of turns."""
        yield from answer_schema_faults("turnSchema", config.get("turnSchema"))


@node("core.conversationGate")
def conversation_gate(
    ctx: NodeContext, config: ConversationGateConfig, inputs: JsonObject
) -> Outcome:
    """Open a conversation and wait until it is closed."""
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        return Completed({"outcome": answer.get("outcome")})
    script = _script(config.turn_count) if config.mock_auto_resume else ()
    schema = answer_schema("turnSchema", config.turn_schema)
    prompt = str(inputs.get("prompt", config.prompt))
    return open_conversation(
        ctx, key, prompt, schema=schema, timeout_ms=config.timeout_ms, script=script
    )


def open_conversation(
    ctx: NodeContext,
    key: str,
    prompt: str,
    *,
    schema: JsonObject | None = None,
    timeout_ms: int = 0,
    script: tuple[Json, ...] = (),
) -> Suspended:
    """Return the suspension for a conversation whose first turn is the prompt.

    The conversation id contains the run id, because the ids of a tenant's conversations must
    differ. A replay takes the id and the turns from the log.
    """
    agent = ctx.agent
    conversation_id = f"{ctx.origin_run_id}:{key}"
    speaker = HOST_SPEAKER if agent is None else agent.agent_id
    data: JsonObject = {"conversationId": conversation_id, "prompt": prompt, "turnIndex": 0}
    first: JsonObject = {
        "messageId": f"{conversation_id}:0:agent",
        "from": speaker,
        "content": prompt,
        "ts": ctx.now,
        "role": "agent",
        "turnIndex": 0,
        "speakerId": speaker if speaker.startswith("host:") else f"host:{speaker}",
    }
    opening: JsonObject = {"conversationId": conversation_id, "initialTurn": first}
    if agent is not None:
        opening["agentId"] = agent.agent_id
    if schema is not None:
        data["outcomeSchema"] = schema
        opening["schema"] = schema
    return Suspended(
        kind="conversation.exchange",
        key=key,
        data=data,
        reason="conversation-input",
        opening=opening,
        timeout_ms=timeout_ms,
        script=script,
    )


def _script(turns: int) -> tuple[Json, ...]:
    exchanges: list[Json] = [
        {"operation": "exchange", "turn": {"content": f"Turn {index} of the script."}}
        for index in range(1, turns + 1)
    ]
    return (*exchanges, {"operation": "close", "outcome": {"turns": turns}})

"""Gates: nodes that wait for a person or for the outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from wopr.engine.expression_tokens import is_object
from wopr.engine.outcome import Completed, NodeFailure, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import members_of, node
from wopr.protocol.checking import schema_faults
from wopr.protocol.documents import UNSET, Closed, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.interrupts import (
    ApprovalAction,
    ApprovalData,
    Audience,
    ClarificationData,
    InterruptKind,
    InterruptPayload,
    Question,
)
from wopr.protocol.schema_size import fixed_faults, measure

TimeoutMs = Annotated[int, msgspec.Meta(ge=0)]


def answer_schema_faults(path: str, schema: Json) -> Iterator[tuple[str, str]]:
    """Find what keeps a schema of answers from being registered.

    The config types do not check it when they are decoded: a definition that an earlier version
    registered must decode, so that its runs can go on or fail with a reason.
    """
    if is_object(schema):
        for fault in schema_faults(path, schema):
            yield fault.path, fault.message


def answer_schema(path: str, schema: JsonObject | Unset) -> JsonObject | None:
    """Return the schema of answers, if any. Fail the node if no answer could be checked by it."""
    if isinstance(schema, Unset):
        return None
    for fault in fixed_faults(measure(schema)):
        raise NodeFailure(f"config.{path}: {fault}", code="validation_error", retryable=False)
    return schema


class ApprovalGateConfig(Document, frozen=True, kw_only=True):
    """What to approve, by whom, and which answers there are."""

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
        """The inputs that the node reads."""
        return ("artifact",)

    def __post_init__(self) -> None:
        if len(set(self.actions)) != len(self.actions):
            raise ValueError("actions must not name an action twice")
        if self.approver_group_refs and not (self.approvers_list or self.approver_role_refs):
            raise ValueError(_NO_GROUPS)


_NO_GROUPS = (
    "this host knows no groups, so nobody could approve; "
    "name approversList or approverRoleRefs beside approverGroupRefs"
)


@node("core.approvalGate")
def approval_gate(ctx: NodeContext, config: ApprovalGateConfig, inputs: JsonObject) -> Outcome:
    """Wait for an approval; the input `artifact` is what the approver sees."""
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if isinstance(answer, Unset):
        return _ask_approval(ctx, config, inputs, key)
    action = answer.get("action")
    if action == "reject":
        raise NodeFailure(f"{config.title}: rejected", code="interrupt_rejected", retryable=False)
    outputs: JsonObject = {"action": action, "approved": True}
    if "editedArtifactData" in answer:
        return Completed(outputs | {"artifact": answer["editedArtifactData"]})
    return Completed(outputs | ({"artifact": inputs["artifact"]} if "artifact" in inputs else {}))


def _ask_approval(
    ctx: NodeContext, config: ApprovalGateConfig, inputs: JsonObject, key: str
) -> Suspended:
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
    """What to ask."""

    questions: Annotated[list[Question], msgspec.Meta(min_length=1)]
    context_type: str | Unset = UNSET
    timeout_ms: TimeoutMs = 0

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name every question whose schema cannot be used."""
        yield from _question_faults("questions", config)

    def __post_init__(self) -> None:
        _check_questions(self.questions)


def _question_faults(path: str, holder: JsonObject) -> Iterator[tuple[str, str]]:
    for index, question in enumerate(members_of(holder, "questions")):
        yield from answer_schema_faults(f"{path}.{index}.schema", question.get("schema"))


def _check_questions(questions: list[Question]) -> None:
    """Refuse questions that cannot be told apart."""
    if len({question.id for question in questions}) != len(questions):
        raise ValueError("two questions have the same id")


@node("core.clarificationGate")
def clarification_gate(
    ctx: NodeContext, config: ClarificationGateConfig, inputs: JsonObject
) -> Outcome:
    """Wait for the answers to some questions."""
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
    """Any wait that the protocol knows."""

    kind: InterruptKind
    data: JsonObject
    timeout_ms: TimeoutMs = 0
    resume_schema: JsonObject | Unset = UNSET

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name every schema of answers that cannot be used."""
        yield from answer_schema_faults("resumeSchema", config.get("resumeSchema"))
        data = config.get("data")
        if config.get("kind") == "clarification" and is_object(data):
            yield from _question_faults("data.questions", data)

    def __post_init__(self) -> None:
        if self.kind == "low-confidence":
            raise ValueError("the host itself asks this when an agent is not sure enough")
        if self.kind.startswith("conversation."):
            raise ValueError("conversations are held by core.conversationGate")
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
    """Wait for whatever the config describes; the answer becomes the outputs."""
    key = ctx.interrupt_key()
    answer: Json = ctx.answer(key)
    if not isinstance(answer, Unset):
        return Completed(answer if is_object(answer) else {"value": answer})
    if config.kind == "clarification":
        for index, question in enumerate(members_of(config.data, "questions")):
            answer_schema(f"data.questions.{index}.schema", question.get("schema", UNSET))
    return Suspended(
        kind=config.kind,
        key=key,
        data=config.data,
        timeout_ms=config.timeout_ms,
        resume_schema=answer_schema("resumeSchema", config.resume_schema),
    )

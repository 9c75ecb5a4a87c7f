"""What `interrupt()` asks for, by its payload, and what the graph is resumed with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from wopr.adapters.asks import Answer
from wopr.adapters.steps import Ask
from wopr.engine.asking import AGENT_REQUEST, TOOL_CALL
from wopr.engine.expression_tokens import is_list, is_object
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.interrupts import ApprovalAction

_ACTIONS: Final[dict[str, ApprovalAction]] = {
    "approve": "accept",
    "edit": "edit-accept",
    "reject": "reject",
}
_YES_OR_NO: Final[tuple[ApprovalAction, ...]] = ("accept", "reject")


def asks_of(value: Json) -> list[Ask]:
    """What a person has to say to one `interrupt(value)`.

    `{"action_requests": [...]}`, as LangChain's middleware writes it, is an approval of each tool
    call; `{"approve": title, "artifact": ..., "actions": [...]}` is one approval; everything else
    is a question.
    """
    requests = _requests(value)
    if requests:
        allowed = _allowed(value)
        return [_tool_ask(request, allowed) for request in requests]
    if is_object(value) and isinstance(value.get("approve"), str):
        return [_approval(value)]
    return [Ask(kind="clarification", text=_question(value))]


def resume_of(value: Json, answers: Sequence[Answer]) -> Json:
    """What `interrupt(value)` returns in the graph.

    An approval gives True or False, or the artifact as it was edited; a question gives its answer.
    """
    requests = _requests(value)
    if requests:
        pairs = zip(requests, answers, strict=True)
        return {"decisions": [_decision(request, answer) for request, answer in pairs]}
    [answer] = answers
    if is_object(value) and isinstance(value.get("approve"), str):
        return answer.is_granted if isinstance(answer.edited, Unset) else answer.edited
    return answer.value


def _requests(value: Json) -> list[JsonObject]:
    found: Json = value.get("action_requests") if is_object(value) else None
    if not is_list(found) or not all(is_object(each) and "name" in each for each in found):
        return []
    return cast("list[JsonObject]", found)


def _allowed(value: JsonObject) -> dict[str, list[ApprovalAction]]:
    """The actions that the middleware offers, by tool."""
    return {
        str(each["action_name"]): [
            _ACTIONS[name] for name in each.get("allowed_decisions", ()) if name in _ACTIONS
        ]
        for each in cast("list[JsonObject]", value.get("review_configs", []))
    }


def _tool_ask(request: JsonObject, allowed: dict[str, list[ApprovalAction]]) -> Ask:
    name = str(request["name"])
    return Ask(
        kind="approval",
        text=f"Call {name}?",
        artifact=request.get("args", {}),
        artifact_type=TOOL_CALL,
        description=str(request.get("description", "")),
        actions=tuple(allowed.get(name, ())) or _YES_OR_NO,
    )


def _decision(request: JsonObject, answer: Answer) -> JsonObject:
    if not answer.is_granted:
        return {"type": "reject"} | ({"message": answer.feedback} if answer.feedback else {})
    if isinstance(answer.edited, Unset):
        return {"type": "approve"}
    return {"type": "edit", "edited_action": {"name": request["name"], "args": answer.edited}}


def _approval(value: JsonObject) -> Ask:
    wanted: Json = value.get("actions")
    return Ask(
        kind="approval",
        text=value["approve"] or "Go on?",
        artifact=value.get("artifact", UNSET),
        artifact_type=AGENT_REQUEST,
        description=str(value.get("description", "")),
        actions=msgspec.convert(wanted, tuple[ApprovalAction, ...]) if wanted else _YES_OR_NO,
    )


def _question(value: Json) -> str:
    if isinstance(value, str):
        return value or "Go on?"
    if not is_object(value) or not isinstance(value.get("question"), str):
        return msgspec.json.encode(value).decode()
    others = {name: member for name, member in value.items() if name != "question"}
    shown = f"\n\n{msgspec.json.encode(others).decode()}" if others else ""
    return f"{value['question']}{shown}"

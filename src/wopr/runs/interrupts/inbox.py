"""The inbox: pending interrupts as documents and as rows of the store, and their tokens."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from wopr.engine.interrupts import GOVERNANCE, Interrupt, answer_effects, question_text
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode, to_iso
from wopr.protocol.interrupts import Asker, InboxItem, Votes
from wopr.security.tokens import InterruptToken, sign_interrupt_token
from wopr.store.port import Suspension

TOKEN_MS = 30 * 60_000
AUTH_REQUIRED = "openwop-interrupt-auth-required"
# Members of an approval's data that restrict who may resolve it.
_APPROVER_MEMBERS = ("approversList", "approverRoleRefs", "approverGroupRefs", GOVERNANCE)


def inbox_item(state: RunState, node_id: str, interrupt: Interrupt) -> InboxItem:
    """Return a pending interrupt as the inbox shows it."""
    run_id = state.identity.run_id
    deadline = interrupt.deadline
    return InboxItem(
        interrupt_id=interrupt.interrupt_id,
        run_id=run_id,
        node_id=node_id,
        workflow_id=state.identity.workflow_id,
        kind=interrupt.kind,
        key=interrupt.key,
        status=interrupt.status,
        requested_at=to_iso(interrupt.requested_at),
        question=question_text(interrupt.kind, interrupt.data),
        asked_by=_asker(state, node_id, interrupt),
        data=interrupt.data,
        answers=answer_effects(interrupt.kind, interrupt.data),
        answer_url=f"/v1/runs/{run_id}/interrupts/{quote(node_id, safe='')}",
        expires_at=UNSET if deadline is None else to_iso(deadline),
        reason=interrupt.reason or UNSET,
        resume_schema=interrupt.resume_schema or UNSET,
        timeout_ms=interrupt.timeout_ms or UNSET,
        votes=_votes(interrupt),
    )


def _asker(state: RunState, node_id: str, interrupt: Interrupt) -> Asker:
    node = state.graph.nodes[node_id]
    pinned = UNSET if isinstance(node.agent, Unset) else node.agent.agent_id
    agent_id: Json = interrupt.data.get("agentId", pinned)
    return Asker(
        node_name=node.name,
        workflow_id=state.identity.workflow_id,
        agent_id=agent_id,
        started_by=UNSET if state.owner is None else state.owner.principal,
    )


def _votes(interrupt: Interrupt) -> Votes | Unset:
    required: Json = interrupt.data.get("requiredApprovals", 1)
    if interrupt.kind != "approval" or required == 1:
        return UNSET
    return Votes(granted=interrupt.grants, rejected=interrupt.rejections, required=required)


def changes(before: RunState, after: RunState) -> tuple[tuple[Suspension, ...], tuple[str, ...]]:
    """Return the inbox rows that a batch writes, and the ids of the rows that it deletes."""
    before_rows = _pending(before)
    after_rows = _pending(after)
    written = tuple(
        Suspension(
            interrupt_id=interrupt_id,
            run_id=after.identity.run_id,
            node_id=node_id,
            workflow_id=after.identity.workflow_id,
            kind=interrupt.kind,
            created_at=interrupt.requested_at,
            expires_at=interrupt.deadline,
            body=encode(inbox_item(after, node_id, interrupt)),
        )
        for interrupt_id, (node_id, interrupt) in after_rows.items()
        if before_rows.get(interrupt_id) != (node_id, interrupt)
    )
    return written, tuple(row_id for row_id in before_rows if row_id not in after_rows)


def _pending(state: RunState) -> dict[str, tuple[str, Interrupt]]:
    return {
        node.interrupt.interrupt_id: (node_id, node.interrupt)
        for node_id, node in state.nodes.items()
        if node.interrupt is not None and node.status == "suspended"
    }


def request_payload(interrupt: Interrupt) -> JsonObject:
    """Return the payload of `interrupt.requested` for a pending interrupt."""
    payload: JsonObject = {
        "kind": interrupt.event_kind,
        "key": interrupt.key,
        "data": interrupt.data,
    }
    if interrupt.resume_schema is not None:
        payload["resumeSchema"] = interrupt.resume_schema
    if interrupt.timeout_ms:
        payload["timeoutMs"] = interrupt.timeout_ms
    return payload


def with_age(row: Suspension, now: int) -> msgspec.Raw:
    """Return a stored row with its age added. Only the age changes with time."""
    return msgspec.Raw(b'{"ageMs":%d,' % max(now - row.created_at, 0) + row.body[1:])


def may_use_token(state: RunState, node_id: str, interrupt: Interrupt) -> bool:
    """Return whether a token may resolve an interrupt.

    A token does not identify a person. So a gate that names approvers accepts none, and neither
    does a gate that counts votes, because one person could vote twice.
    """
    data = interrupt.data
    has_no_approvers = not any(data.get(name) for name in _APPROVER_MEMBERS)
    is_single: bool = data.get("requiredApprovals", 1) == 1
    profile = state.graph.nodes[node_id].config.get("profile")
    return profile != AUTH_REQUIRED and has_no_approvers and is_single


def make_token(state: RunState, node_id: str, interrupt: Interrupt, now: int, key: bytes) -> str:
    """Return a token for an interrupt. It is valid for half an hour, or until the deadline."""
    expires_at = now + TOKEN_MS
    if interrupt.deadline is not None:
        expires_at = min(expires_at, interrupt.deadline)
    token = InterruptToken(
        tenant=state.identity.tenant,
        run_id=state.identity.run_id,
        node_id=node_id,
        interrupt_id=interrupt.interrupt_id,
        expires_at=expires_at,
        intent="resolve",
    )
    return sign_interrupt_token(token, key)

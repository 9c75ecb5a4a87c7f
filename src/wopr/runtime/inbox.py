"""The inbox: everything that waits for a person or the outside, as documents and as rows."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from wopr.engine.asking import effects, question
from wopr.engine.interrupts import GOVERNANCE, Interrupt
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, Document, Json, JsonObject, Unset, encode
from wopr.protocol.times import to_iso
from wopr.security.tokens import InterruptToken, sign
from wopr.store.port import Suspension

TOKEN_MS = 30 * 60_000
AUTH_REQUIRED = "openwop-interrupt-auth-required"
# Members of an approval's data that make it matter who answers.
_NAMES_APPROVERS = ("approversList", "approverRoleRefs", "approverGroupRefs", GOVERNANCE)


class Asker(Document, frozen=True, kw_only=True):
    """Who asks: a node of a workflow, the agent that it speaks for, and who started the run."""

    node_name: str
    workflow_id: str
    agent_id: str | Unset = UNSET
    started_by: str | Unset = UNSET


class Votes(Document, frozen=True, kw_only=True, omit_defaults=False):
    """How far a gate that needs several approvals has come."""

    granted: int
    rejected: int
    required: int


class InboxItem(Document, frozen=True, kw_only=True):
    """One wait: who asked, why, what each answer does, and until when."""

    interrupt_id: str
    run_id: str
    node_id: str
    workflow_id: str
    kind: str
    key: str
    status: str
    requested_at: str
    question: str
    asked_by: Asker
    data: JsonObject
    answers: dict[str, str]
    answer_url: str
    expires_at: str | Unset = UNSET
    reason: str | Unset = UNSET
    resume_schema: JsonObject | Unset = UNSET
    timeout_ms: int | Unset = UNSET
    votes: Votes | Unset = UNSET


def inbox_item(state: RunState, node_id: str, interrupt: Interrupt) -> InboxItem:
    """A wait as whoever has to answer it sees it."""
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
        question=question(interrupt.kind, interrupt.data),
        asked_by=_asker(state, node_id, interrupt),
        data=interrupt.data,
        answers=effects(interrupt.kind, interrupt.data),
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
    """The inbox rows that a burst writes, and the ids of those that it takes out."""
    had = _waits(before)
    has = _waits(after)
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
        for interrupt_id, (node_id, interrupt) in has.items()
        if had.get(interrupt_id) != (node_id, interrupt)
    )
    return written, tuple(name for name in had if name not in has)


def _waits(state: RunState) -> dict[str, tuple[str, Interrupt]]:
    return {
        node.interrupt.interrupt_id: (node_id, node.interrupt)
        for node_id, node in state.nodes.items()
        if node.interrupt is not None and node.status == "suspended"
    }


def request(interrupt: Interrupt) -> JsonObject:
    """What the node asked for, as `interrupt.requested` has it."""
    asked: JsonObject = {"kind": interrupt.event_kind, "key": interrupt.key, "data": interrupt.data}
    if interrupt.resume_schema is not None:
        asked["resumeSchema"] = interrupt.resume_schema
    if interrupt.timeout_ms:
        asked["timeoutMs"] = interrupt.timeout_ms
    return asked


def aged(row: Suspension, now: int) -> msgspec.Raw:
    """A row as it lies in the store, with its age; whatever else it says does not change by itself."""
    return msgspec.Raw(b'{"ageMs":%d,' % max(now - row.created_at, 0) + row.body[1:])


def may_use_token(state: RunState, node_id: str, interrupt: Interrupt) -> bool:
    """A token says nothing of who holds it, so no gate takes one that asks for certain people.

    Nor does a gate that counts votes: whoever reads the token could vote twice.
    """
    data = interrupt.data
    is_for_anyone = not any(data.get(name) for name in _NAMES_APPROVERS)
    is_single: bool = data.get("requiredApprovals", 1) == 1
    profile = state.graph.nodes[node_id].config.get("profile")
    return profile != AUTH_REQUIRED and is_for_anyone and is_single


def mint(state: RunState, node_id: str, interrupt: Interrupt, now: int, key: bytes) -> str:
    """A token for this wait, good for half an hour and never longer than the wait itself."""
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
    return sign(token, key)

"""Long-term memory as a node sees it: its tenant's, as of its run's start, with its own writes.

What a child run wrote is seen from the moment it completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from wopr.agents.memory import Memory, MemoryScope
from wopr.engine.history import moved_by
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.memory import is_memory_ref

if TYPE_CHECKING:
    from wopr.runtime.agent_call import AgentCall


class RunMemory:
    """The memory of one node's call; every write leaves an event without content."""

    def __init__(self, memory: Memory, call: AgentCall) -> None:
        self._memory = memory
        self._call = call
        self._writes = 0

    async def put(
        self,
        memory_ref: str,
        content: str,
        *,
        tags: Sequence[str] = (),
        expires_at: int | None = None,
    ) -> JsonObject:
        """Keep an entry. Its id is derived, so that a call that runs twice writes once."""
        call = self._call
        memory_id = f"{call.node_id}-{call.visit}-{self._writes}-{call.run_id}"
        self._writes += 1
        entry = await self._memory.put(
            self._scope(memory_ref),
            memory_id,
            content,
            redactor=call.redactor,
            tags=tags,
            expires_at=expires_at,
        )
        payload: JsonObject = {"memoryRef": memory_ref, "memoryId": memory_id}
        if tags:
            payload["tags"] = entry.tags
        if call.agent is not None:
            payload["agentId"] = call.agent.agent_id
        call.emit("memory.written", payload | {"nodeId": call.node_id})
        shown: Json = msgspec.to_builtins(entry)
        return dict(shown)

    async def list(self, memory_ref: str) -> Sequence[JsonObject]:
        """Entries, newest first; a reference that is no memory of this tenant reads as empty."""
        if not is_memory_ref(memory_ref):
            return []
        entries = await self._memory.list(self._scope(memory_ref))
        return [msgspec.to_builtins(entry) for entry in entries]

    def _scope(self, memory_ref: str) -> MemoryScope:
        state = self._call.state
        return MemoryScope(
            tenant=self._call.tenant,
            memory_ref=memory_ref,
            run_id=self._call.run_id,
            # A branch remembers what its source did: time that is moved for limits is not here.
            run_started_at=state.started_at - moved_by(state.identity, 0),
        )

"""What `core.identity` does in conformance workflows whose config scripts memory and messages."""

from __future__ import annotations

from typing import Literal

from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import Document, Json, JsonObject

TYPE_ID = "core.conformance.identity-hooks"
# The secret that the redaction probe resolves; the host knows it by this id and redacts it.
PROBE_SECRET_ID = "conformance-test-secret"
PROBE_SECRET = "conformance-byok-plaintext-7f3a"
SCRIPT_KEYS = frozenset({"memoryAction", "emitDuplicateMessageId"})
# The run input that makes the node return what no agent's schema promises.
BROKEN_RETURN = "mock-return-violation"
HOUR_MS = 3_600_000
LOCAL_REF = "conformance/node-local"


class IdentityHooks(Document, frozen=True, kw_only=True):
    """Test hooks, honoured in conformance workflows only."""

    memory_action: Literal[
        "write-then-read", "redaction-probe", "ttl-probe", "cross-tenant-probe", ""
    ] = ""
    probe_memory_ref: str = ""
    byok_secret_id: str = PROBE_SECRET_ID
    emit_duplicate_message_id: bool = False


@node(TYPE_ID, conformance_only=True)
async def identity_hooks(ctx: NodeContext, config: IdentityHooks, inputs: JsonObject) -> Completed:
    """Play the script, then hand every input on as `core.identity` does."""
    match config.memory_action:
        case "write-then-read":
            await _read_back(ctx, "remembered")
        case "redaction-probe":
            await _read_back(ctx, f"the key is {PROBE_SECRET}")
        case "ttl-probe":
            await _probe_ttl(ctx)
        case "cross-tenant-probe":
            await _probe_tenants(ctx, config.probe_memory_ref)
        case "":
            pass
    if config.emit_duplicate_message_id:
        for message_id, content in (("id-1", "first"), ("id-1", "again"), ("id-2", "second")):
            message = {
                "messageId": message_id,
                "from": "user",
                "role": "user",
                "content": content,
                "ts": ctx.now,
            }
            ctx.write_channel("messages", message)
    if ctx.variables.get("scenario") == BROKEN_RETURN:
        return Completed({"mockReturn": BROKEN_RETURN})
    return Completed(inputs)


def _memory_ref(ctx: NodeContext) -> str:
    pinned: Json = getattr(ctx.agent, "memory_ref", None)
    return pinned if isinstance(pinned, str) else LOCAL_REF


async def _read_back(ctx: NodeContext, content: str) -> None:
    ref = _memory_ref(ctx)
    await ctx.memory.put(ref, content, tags=["conformance"])
    ctx.set_variable("memoryReadback", (await ctx.memory.list(ref))[0])


async def _probe_ttl(ctx: NodeContext) -> None:
    ref = _memory_ref(ctx)
    expired = await ctx.memory.put(ref, "stale", expires_at=ctx.now - 1)
    fresh = await ctx.memory.put(ref, "fresh", expires_at=ctx.now + HOUR_MS)
    ctx.set_variable("expiredId", expired["id"])
    ctx.set_variable("freshId", fresh["id"])
    ctx.set_variable("memoryList", list(await ctx.memory.list(ref)))


async def _probe_tenants(ctx: NodeContext, foreign_ref: str) -> None:
    ref = _memory_ref(ctx)
    own = await ctx.memory.put(ref, "mine")
    ctx.set_variable("ownerEntryId", own["id"])
    ctx.set_variable("ownerProbe", list(await ctx.memory.list(ref)))
    ctx.set_variable("crossTenantProbe", list(await ctx.memory.list(foreign_ref)))

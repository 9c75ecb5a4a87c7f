"""Node types for tests: they emit, decide and remember according to their config."""

from __future__ import annotations

from wopr.engine.outcome import Completed, Outcome, Sleeping
from wopr.nodes.context import NodeContext, ToolUse
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import Json, JsonObject

AGENT = "vendor.acme.talker"


def speak(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Emit events."""
    for event_type, payload in config["emit"]:
        ctx.emit(event_type, payload)
    return Completed(config.get("outputs", {}))


def confess(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Emit reasoning and call a tool with a secret that the definition contains in parts."""
    secret = "".join(config["parts"])
    half = len(secret) // 2
    ctx.reason(AGENT, f"I hold {secret}")
    ctx.reason(AGENT, "", deltas=["the key is ", secret[:half], secret[half:], " and that is it"])
    ctx.record_tool_call(AGENT, "mcp:ask", {"key": secret}, {"outcome": {"said": secret}})
    return Completed()


async def ponder(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Outcome:
    """Decide, emit the decision at once, and continue only at the next call."""
    if not ctx.variables.get("pondered"):
        ctx.emit("agent.decided", config["decided"])
        ctx.set_variable("pondered", True)
        await ctx.flush()
        return Sleeping(ctx.now)
    return Completed({"went": "on"})


async def remember(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Write memory entries, then read the memory."""
    for content in config.get("write", []):
        await ctx.memory.put(config["ref"], content)
    found = await ctx.memory.list(config["ref"])
    return Completed({"read": [entry["content"] for entry in found]})


async def fetch(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Call a tool that returns its arguments."""
    use = ToolUse(
        tool_name="acme:fetch",
        arguments=config["arguments"],
        transport="native",
        required_scopes=tuple(config.get("scopes", ())),
    )

    async def effect() -> Json:
        return {"answer": config["arguments"]}

    return Completed(await ctx.call_tool(use, effect, lambda _: "not shown"))


TYPES = (
    NodeType(type_id="vendor.acme.confess", execute=confess),
    *(
        NodeType(type_id=type_id, execute=speak)
        for type_id in (
            "acme.speak",
            "vendor.acme.speak",
            "core.llm.speak",
            "openwop.llm.speak",
            "openwop.mcp.speak",
            "core.speak",
            "wopr.speak",
        )
    ),
    NodeType(type_id="vendor.acme.ponder", execute=ponder, is_async=True),
    NodeType(type_id="acme.fetch", execute=fetch, is_async=True),
    NodeType(type_id="vendor.acme.remember", execute=remember, is_async=True),
)

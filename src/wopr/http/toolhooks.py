"""The seam of tool hooks for conformance checks; a host without `--conformance` has none."""

from __future__ import annotations

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.protocol.errors import NotFound
from wopr.runtime.tool_probe import ToolProbe, ToolProbed, probe


async def invoke(exchange: Exchange) -> Answer:
    """Say what would come of a tool call, without making it."""
    host = exchange.host
    if not host.settings.conformance:
        raise NotFound(f"there is nothing at {exchange.scope['path']}")
    wanted = await exchange.document(ToolProbe)
    policy = host.advancer.services.tools
    redactor = host.advancer.journal.redactor
    return ok(await probe(policy, redactor, exchange.tenant, wanted))


OPERATIONS = (
    Operation(
        name="probeToolHooks",
        method="POST",
        path="/v1/host/sample/toolhooks/invoke",
        handler=invoke,
        summary="Try the rules for tool calls (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=ToolProbe,
        answer=ToolProbed,
        errors=(400, 401, 403, 404, 413, 415),
        is_extension=True,
    ),
)

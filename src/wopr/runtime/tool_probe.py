"""What the host would do with a tool call, for conformance checks: no call is made or recorded."""

from __future__ import annotations

from typing import Literal

from wopr.agents.tools import args_hash, decide
from wopr.protocol.documents import UNSET, Closed, Document, Json, Millis, NonEmpty, Unset
from wopr.runtime.tool_calls import ToolPolicy
from wopr.security.redact import Redactor


class ToolProbe(Closed, frozen=True, kw_only=True):
    """A tool call that is only thought of."""

    principal: NonEmpty
    tool_name: NonEmpty
    required_scopes: list[NonEmpty] = []
    args: Json | Unset = UNSET
    simulate_rate_limit_exhausted: bool = False


class ProbedCall(Document, frozen=True, kw_only=True):
    """What `agent.toolCalled` would carry."""

    args_hash: str
    principal: str
    transport: Literal["mcp", "http", "native"]


class ProbedReturn(Document, frozen=True, kw_only=True):
    """What `agent.toolReturned` would carry; a call that is not made takes no time."""

    status: Literal["ok", "forbidden", "rate_limited"]
    duration_ms: Millis | Unset = UNSET


class ToolProbed(Document, frozen=True, kw_only=True):
    """Both halves."""

    tool_called: ProbedCall
    tool_returned: ProbedReturn


async def probe(
    policy: ToolPolicy, redactor: Redactor, tenant: str, wanted: ToolProbe
) -> ToolProbed:
    """Decide on a call as for a node's; a principal without a key of this tenant has no scopes."""
    given: Json = {} if isinstance(wanted.args, Unset) else wanted.args
    called = ProbedCall(
        args_hash=args_hash(redactor.json(given)),
        principal=wanted.principal,
        transport="native",
    )
    return ToolProbed(tool_called=called, tool_returned=await _returned(policy, tenant, wanted))


async def _returned(policy: ToolPolicy, tenant: str, wanted: ToolProbe) -> ProbedReturn:
    if wanted.required_scopes:
        scopes = await policy.scopes(tenant, wanted.principal)
        if decide(scopes, wanted.required_scopes) == "forbidden":
            return ProbedReturn(status="forbidden")
    who = f"{tenant}/{wanted.principal}"
    if wanted.simulate_rate_limit_exhausted or policy.limits.take((who, wanted.tool_name)):
        return ProbedReturn(status="rate_limited")
    return ProbedReturn(status="ok", duration_ms=0)

"""Agents of the fleet that wait in a run of this host, and what in the inbox they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wopr.fleet.bridge_ids import to_agent_id
from wopr.protocol.fleet import AgentInRun
from wopr.store.port import Suspension, SuspensionFilter, Suspensions

# Of a run that waits for more than this, the oldest are not looked for.
_MOST: Final = 100


class _Asker(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str = ""


class _Item(msgspec.Struct, rename="camel"):
    """What is read of an inbox item: whose question it is."""

    asked_by: _Asker = _Asker()


_ITEMS = msgspec.json.Decoder(_Item)


async def with_interrupts(
    inbox: Suspensions, tenant: str, agents: Sequence[AgentInRun]
) -> list[AgentInRun]:
    """Say of each agent that waits here what would answer it; the others are as they were."""
    return [
        each
        if each.waiting_s is None
        else replace(each, openwop_interrupt_id=await _interrupt_of(inbox, tenant, each))
        for each in agents
    ]


async def _interrupt_of(inbox: Suspensions, tenant: str, agent: AgentInRun) -> str | None:
    where = SuspensionFilter(run_id=agent.run_id)
    page = await inbox.pending(tenant, where, None, _MOST)
    found = page.suspensions
    own = [each for each in found if _asker(each) == agent.agent_id]
    # A question that names no agent can only be this one's where it is the only one.
    is_only = len(found) == 1 and page.next_after is None
    return (own or found)[0].interrupt_id if own or is_only else None


def _asker(suspension: Suspension) -> str | None:
    name = _ITEMS.decode(suspension.body).asked_by.agent_id
    return to_agent_id(name) if name else None

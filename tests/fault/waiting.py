"""Waiting runs of a bench: their answers, their events and their inbox items."""

from __future__ import annotations

import msgspec

from tests.support.in_process import TENANT, Bench
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import AnswerTaken
from wopr.runs.interrupts.approvals import Resolver
from wopr.store.port import SuspensionFilter

ANN = Resolver(name="ann", role="admin")


async def answer(ours: Bench, run_id: str, value: Json, node_id: str = "gate") -> AnswerTaken:
    return await ours.host.commands.resolve_interrupt(TENANT, run_id, node_id, value, ANN)


async def payloads(ours: Bench, run_id: str, event_type: str) -> list[JsonObject]:
    return [event.payload for event in await ours.log(run_id) if event.type == event_type]


async def inbox(ours: Bench, run_id: str) -> list[JsonObject]:
    where = SuspensionFilter(run_id=run_id)
    page = await ours.host.store.pending_interrupts(TENANT, where, None, 10)
    return [msgspec.json.decode(row.body) for row in page.suspensions]

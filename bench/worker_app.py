"""An app with one async node that returns the id of the process that executes it."""

from __future__ import annotations

import asyncio
import os
from typing import TypedDict

import msgspec

from wopr import NodeContext, Workflow, node


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Executed(TypedDict):
    process: int


@node("bench.async")
async def execute(ctx: NodeContext, config: Nothing, inputs: Nothing) -> Executed:
    """Yield to the event loop, like a node that waits for the network."""
    await asyncio.sleep(0)
    return {"process": os.getpid()}


flow = Workflow("bench-async")
executed = flow.add("execute", execute)
end = flow.end(process=executed["process"])
executed >> end

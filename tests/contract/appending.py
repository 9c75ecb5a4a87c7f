"""A process to be killed: it appends from several tasks and prints each durable append."""

from __future__ import annotations

import os
import sys

import anyio

from tests.support.rows import TENANT, batch
from wopr.store.open import open_store
from wopr.store.port import Store

WRITERS = 8


async def append_on(store: Store, run_id: str) -> None:
    for first in range(0, 1_000_000, 3):
        await store.append(TENANT, [batch(run_id, first, 3)])
        os.write(sys.stdout.fileno(), f"{run_id} {first + 2}\n".encode())


async def main(url: str) -> None:
    store = await open_store(url)
    async with anyio.create_task_group() as tasks:
        for n in range(WRITERS):
            tasks.start_soon(append_on, store, f"run-{n}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])

"""Judges at work in this host: how their runs start, and the task that moves them on."""

from __future__ import annotations

import anyio
import structlog

from wopr.feedback.judges import Judges
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import SequenceTaken, WoprError
from wopr.protocol.reviews import Judge
from wopr.protocol.runs import CreateRun, Owner
from wopr.runtime.commands import Commands
from wopr.runtime.library import Library
from wopr.runtime.requests import NewRun
from wopr.runtime.starting import check_inputs, check_test_hooks

# Judging runs are looked after this often while one is under way, and less as nothing happens.
SHORTEST_SECONDS = 0.05
LONGEST_SECONDS = 2.0
IDLE_SECONDS = 30.0

log = structlog.get_logger("wopr.judges")


class JudgeRuns:
    """Starts judging runs for whoever ordered the judgment."""

    def __init__(self, commands: Commands, library: Library) -> None:
        self._commands = commands
        self._library = library

    async def __call__(
        self, tenant: str, run_id: str, judge: Judge, inputs: JsonObject, metadata: JsonObject
    ) -> None:
        """Start a run under this name; one that is there already is left alone."""
        compiled = await self._library.newest(tenant, judge.workflow_id)
        check_test_hooks(compiled)
        check_inputs(compiled, inputs)
        request = CreateRun(
            workflow_id=judge.workflow_id, inputs=inputs, tags=["judge"], metadata=metadata
        )
        owner = Owner(tenant=tenant, principal=judge.created_by)
        new = NewRun(request=request, compiled=compiled, owner=owner, run_id=run_id)
        try:
            await self._commands.create(new)
        except SequenceTaken:
            log.info("judging run is there already", run_id=run_id)


class JudgeWork:
    """The task that moves judges on, until all are done and again when there is a new one."""

    def __init__(self, judges: Judges) -> None:
        self._judges = judges
        self._order = anyio.Event()

    def ordered(self) -> None:
        """Hear that there is a new judge."""
        self._order.set()

    async def run_forever(self) -> None:
        """Work until cancelled."""
        pause = SHORTEST_SECONDS
        while True:
            self._order = anyio.Event()
            is_open, has_moved = await self._round()
            pause = SHORTEST_SECONDS if has_moved else min(pause * 2, LONGEST_SECONDS)
            with anyio.move_on_after(pause if is_open else IDLE_SECONDS):
                await self._order.wait()

    async def _round(self) -> tuple[bool, bool]:
        """Move every judge on; answers whether there are any, and whether one moved."""
        try:
            unfinished = await self._judges.unfinished()
        except WoprError as error:
            log.error("judges wait for the store", code=error.code, message=str(error))
            return True, False
        moved = [await self._step(tenant, judge_id) for tenant, judge_id in unfinished]
        return bool(unfinished), any(moved)

    async def _step(self, tenant: str, judge_id: str) -> bool:
        try:
            return await self._judges.step(tenant, judge_id)
        except WoprError as error:
            log.error("judge failed", judge_id=judge_id, code=error.code, message=str(error))
        except Exception as error:  # the outer edge of a task
            log.error("judge failed", judge_id=judge_id, exc_info=error)
        return False

"""What this process hears of others: logs that have grown, runs that were woken, what has changed."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import structlog

from wopr.agents.registry import Agents
from wopr.protocol.errors import WoprError
from wopr.runtime.advance import Advancer
from wopr.runtime.bus import Bus
from wopr.runtime.feedback import announce
from wopr.runtime.judging import JudgeWork
from wopr.runtime.keyring import Keyring
from wopr.runtime.library import Library
from wopr.runtime.subscriptions import Subscriptions
from wopr.runtime.webhooks import Dispatcher
from wopr.store.port.peers import Annotated, Changed, Grown, News, Owed, Peers, Woken

# What a lost notification costs: readers look at the store this often anyway, and everything that
# is kept in memory is read once more.
REREAD_SECONDS = 5.0
REFRESH_SECONDS = 30.0
READ_AT_ONCE = 100

log = structlog.get_logger("wopr.peers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """What a process keeps in memory of what others may change."""

    library: Library
    agents: Agents
    keyring: Keyring
    subscriptions: Subscriptions

    async def refresh(self, *, has_missed: bool = False) -> None:
        """Read everything once more; workflows only after notifications may have been missed.

        Without that their own age says when they are read again.
        """
        if has_missed:
            self.library.forget_newest()
        self.keyring.forget_all()
        await self.agents.refresh()
        await self.subscriptions.load()


class Hearing:
    """Listens for as long as the host runs."""

    def __init__(
        self,
        peers: Peers,
        advancer: Advancer,
        bus: Bus,
        caches: Caches,
        dispatcher: Dispatcher,
        judge_work: JudgeWork,
    ) -> None:
        self._peers = peers
        self._advancer = advancer
        self._store = advancer.journal.store
        self._bus = bus
        self._caches = caches
        self._dispatcher = dispatcher
        self._judge_work = judge_work

    async def listen_forever(self) -> None:
        """Hear until cancelled."""
        async for news in self._peers.news():
            try:
                # Not cut off in the middle: a connection would be lost with it.
                with anyio.CancelScope(shield=True):
                    await self._hear(news)
            except WoprError as error:
                log.error("news wait for the store", code=error.code, message=str(error))

    async def reread_forever(self) -> None:
        """Let every reader look for itself from time to time."""
        while True:
            await anyio.sleep(REREAD_SECONDS)
            self._bus.wake_all()

    async def refresh_forever(self) -> None:
        """Read what is kept in memory once more from time to time."""
        while True:
            await anyio.sleep(REFRESH_SECONDS)
            try:
                with anyio.CancelScope(shield=True):
                    await self._caches.refresh()
            except WoprError as error:
                log.error("a refresh waits for the store", code=error.code, message=str(error))

    async def _hear(self, news: News) -> None:
        match news:
            case Grown():
                await self._grown(news)
            case Annotated():
                await self._annotated(news)
            case Woken(process=process) if process == self._advancer.holding.process:
                self._advancer.wakeups.soon(news.tenant, news.run_id)
            case Woken():
                pass
            case Owed():
                self._dispatcher.wake(news.tenant, news.webhook_id)
            case Changed():
                await self._changed(news)
            case _:
                self._bus.wake_all()
                self._look_after_runs()
                await self._caches.refresh(has_missed=True)

    def _look_after_runs(self) -> None:
        """Look at what is executed here: others may have ended or changed it unheard."""
        for run in self._advancer.runs.values():
            if run.in_flight:
                self._advancer.wakeups.soon(run.state.identity.tenant, run.state.identity.run_id)

    async def _grown(self, news: Grown) -> None:
        try:
            await self._pass_on(news)
        finally:
            run = self._advancer.runs.get(news.run_id)
            if run is not None and run.in_flight and run.state.next_sequence <= news.sequence:
                # Another process has appended to what is executed here.
                self._advancer.wakeups.soon(news.tenant, news.run_id)

    async def _pass_on(self, news: Grown) -> None:
        while (start := self._bus.missing(news.run_id, news.sequence)) is not None:
            # Read once for all who read the run here.
            events = await self._store.read(news.tenant, news.run_id, start, READ_AT_ONCE)
            self._bus.publish(news.run_id, events)
            if not events:
                break

    async def _annotated(self, news: Annotated) -> None:
        if not self._bus.has_readers(news.run_id):
            return
        body = await self._peers.annotation(news.tenant, news.run_id, news.annotation_id)
        if body is not None:
            announce(self._bus, news.run_id, news.annotation_id, body)

    async def _changed(self, news: Changed) -> None:
        caches = self._caches
        match news.kept:
            case "workflows":
                caches.library.forget_newest()
            case "agents":
                await caches.agents.load(news.tenant)
            case "api_keys":
                caches.keyring.forget_all()
            case "webhooks":
                await caches.subscriptions.refresh(news.tenant, news.name, keeps_health=True)
                self._dispatcher.wake(news.tenant, news.name)
            case "judges":
                self._judge_work.ordered()

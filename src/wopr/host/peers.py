"""A host that shares its store with other processes: its membership and their notifications."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from dataclasses import dataclass

import anyio
import anyio.abc
import structlog

from wopr.agents.registry import AgentRegistry
from wopr.agents.tools.toolbox import Toolbox
from wopr.cluster.membership import Membership
from wopr.feedback.annotations import announce
from wopr.feedback.judges import JudgeTask
from wopr.nodes.registry import NodeRegistry
from wopr.process.background import BackgroundTask
from wopr.process.settings import Settings
from wopr.protocol.errors import Refused, WoprError
from wopr.runs.advance import Advancer
from wopr.runs.definitions.library import Library
from wopr.runs.event_bus import Bus
from wopr.security.encryption import derive
from wopr.services.api_keys import Keyring
from wopr.services.webhooks.subscriptions import Subscriptions
from wopr.store.port.peers import (
    DeliveriesQueued,
    Notification,
    Peers,
    Process,
    ResourceChanged,
    RunAnnotated,
    RunAppended,
    RunWoken,
)
from wopr.version import __version__

# A lost notification delays readers and caches by at most these times.
REREAD_SECONDS = 5.0
REFRESH_SECONDS = 30.0
PAGE = 100
KEY_FINGERPRINT = "host key"

log = structlog.get_logger("wopr.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """The caches of this process whose data other processes may change."""

    library: Library
    agents: AgentRegistry
    keyring: Keyring
    subscriptions: Subscriptions

    async def refresh(self, *, has_missed: bool = False) -> None:
        """Read cached data again.

        Workflows are read again only with `has_missed`, which means that notifications may have
        been lost. Otherwise they expire by their age.
        """
        if has_missed:
            self.library.forget_newest()
        self.keyring.clear_cache()
        await self.agents.refresh()
        await self.subscriptions.load()


class PeerListener:
    """Handles the notifications of other processes."""

    def __init__(
        self,
        peers: Peers,
        advancer: Advancer,
        bus: Bus,
        caches: Caches,
        judge_task: JudgeTask,
    ) -> None:
        self._peers = peers
        self._advancer = advancer
        self._store = advancer.journal.store
        self._bus = bus
        self._caches = caches
        self._judge_task = judge_task

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start to listen, and to read data again regularly in case a notification was lost."""
        for task in (
            BackgroundTask("notifications", self._listen),
            BackgroundTask(
                "reread events", self._reread, period=REREAD_SECONDS, starts_at_once=False
            ),
            BackgroundTask(
                "refresh caches",
                self._caches.refresh,
                period=REFRESH_SECONDS,
                starts_at_once=False,
                is_shielded=True,
            ),
        ):
            tasks.start_soon(task.run)

    async def _listen(self) -> None:
        async for notification in self._peers.notifications():
            try:
                # Not cancelled, because that would close the database connection.
                with anyio.CancelScope(shield=True):
                    await self._handle(notification)
            except WoprError as error:
                log.error("notification not handled", code=error.code, message=str(error))

    async def _reread(self) -> None:
        self._bus.wake_all()

    async def _handle(self, notification: Notification) -> None:
        match notification:
            case RunAppended():
                await self._handle_append(notification)
            case RunAnnotated():
                await self._handle_annotation(notification)
            case RunWoken(process=process) if process == self._advancer.leases.process:
                self._advancer.wakeups.advance_soon(notification.tenant, notification.run_id)
            case RunWoken():
                pass
            case DeliveriesQueued():
                self._caches.subscriptions.changes.add(notification.tenant, notification.webhook_id)
            case ResourceChanged():
                await self._handle_change(notification)
            case _:
                # The connection is new. Earlier notifications may have been lost.
                self._bus.wake_all()
                self._wake_active_runs()
                await self._caches.refresh(has_missed=True)

    def _wake_active_runs(self) -> None:
        """Wake the runs with nodes in flight, because other processes may have changed them."""
        for run in self._advancer.active.runs.values():
            if run.in_flight:
                self._advancer.wakeups.advance_soon(
                    run.state.identity.tenant, run.state.identity.run_id
                )

    async def _handle_append(self, appended: RunAppended) -> None:
        try:
            await self._publish(appended)
        finally:
            run = self._advancer.active.runs.get(appended.run_id)
            if run is not None and run.in_flight and run.state.next_sequence <= appended.sequence:
                # Another process has appended to a run whose nodes this process executes.
                self._advancer.wakeups.advance_soon(appended.tenant, appended.run_id)

    async def _publish(self, appended: RunAppended) -> None:
        """Read the new events once, for all readers of the run in this process."""
        while (start := self._bus.first_missing(appended.run_id, appended.sequence)) is not None:
            events = await self._store.read(appended.tenant, appended.run_id, start, PAGE)
            self._bus.publish(appended.run_id, events)
            if not events:
                break

    async def _handle_annotation(self, added: RunAnnotated) -> None:
        if not self._bus.has_readers(added.run_id):
            return
        body = await self._peers.annotation(added.tenant, added.run_id, added.annotation_id)
        if body is not None:
            announce(self._bus, added.run_id, added.annotation_id, body)

    async def _handle_change(self, change: ResourceChanged) -> None:
        caches = self._caches
        match change.resource:
            case "workflows":
                caches.library.forget_newest()
            case "agents":
                await caches.agents.load(change.tenant)
            case "api_keys":
                caches.keyring.clear_cache()
            case "webhooks":
                await caches.subscriptions.refresh(change.tenant, change.name, keeps_health=True)
                caches.subscriptions.changes.add(change.tenant, change.name)
            case "judges":
                self._judge_task.wake()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The membership of this process in a cluster, and its listener."""

    membership: Membership
    listener: PeerListener

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Send heartbeats and listen to the other processes."""
        self.membership.start(tasks)
        self.listener.start(tasks)


def describe_process(settings: Settings, registry: NodeRegistry, toolbox: Toolbox) -> Process:
    """Describe this process: its name and the code that it has."""
    return Process(
        name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        kind="api" if settings.serves else "worker",
        code_version=settings.code_version or f"wopr-{__version__}",
        node_types=tuple(sorted(node_type.type_id for node_type in registry)),
        tools=toolbox.function_names,
        executes=settings.executes,
    )


async def require_same_key(peers: Peers, secret: bytes) -> None:
    """Raise `Refused` unless the host key is that of the first process on this database."""
    own_fingerprint = hashlib.sha256(derive(secret, "fingerprint")).hexdigest()[:32]
    if await peers.share_fact(KEY_FINGERPRINT, own_fingerprint) != own_fingerprint:
        raise Refused(
            "The database belongs to hosts with another host key. Set WOPR_HOST_KEY to the base64 "
            "of the file host.key in the data directory of the first host.",
            field="host_key",
        )

"""A host among others on the same store: what it needs beside the parts that every host has."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.abc

from wopr import __version__
from wopr.agents.toolbox import Toolbox
from wopr.nodes.registry import NodeRegistry
from wopr.protocol.errors import Refused
from wopr.runtime.duties import duties_of
from wopr.runtime.hearing import Caches, Hearing
from wopr.runtime.holding import Holding, HoldingLimits
from wopr.runtime.membership import Membership
from wopr.runtime.settings import Settings
from wopr.runtime.wakeups import WakeupSource
from wopr.runtime.wakeups_alone import AloneSource
from wopr.runtime.wakeups_queue import QueueSource
from wopr.security.seal import derive
from wopr.store.port import Store
from wopr.store.port.peers import Peers, Process

if TYPE_CHECKING:
    from wopr.runtime.host import Host

FINGERPRINT = "host key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """This process among the others, and what it hears of them."""

    membership: Membership
    hearing: Hearing

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Be known, and hear."""
        self.membership.start(tasks)
        tasks.start_soon(self.hearing.listen_forever)
        tasks.start_soon(self.hearing.reread_forever)
        tasks.start_soon(self.hearing.refresh_forever)


def sharing_of(host: Host, peers: Peers) -> Sharing:
    """The parts of a host that shares its store, put together."""
    return Sharing(
        membership=Membership(
            peers,
            host.advancer,
            host.metrics,
            process=host.process,
            duties=duties_of(host),
        ),
        hearing=Hearing(
            peers,
            host.advancer,
            host.bus,
            Caches(
                library=host.library,
                agents=host.agents,
                keyring=host.keyring,
                subscriptions=host.subscriptions,
            ),
            host.dispatcher,
            host.feedback.judge_work,
        ),
    )


def process_of(settings: Settings, registry: NodeRegistry, toolbox: Toolbox) -> Process:
    """What this process is called, and what code it has."""
    return Process(
        name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        kind="api" if settings.serves else "worker",
        code_version=settings.code_version or f"wopr-{__version__}",
        node_types=tuple(sorted(node_type.type_id for node_type in registry)),
        tools=toolbox.functions,
        executes=settings.executes,
    )


def holding_of(settings: Settings, peers: Peers | None, name: str) -> Holding:
    """Which runs this process may have; all, where it has the store to itself."""
    limits = HoldingLimits(
        runs=settings.max_held_runs,
        runs_per_tenant=settings.max_held_runs_per_tenant,
        memory_bytes=settings.max_held_bytes,
    )
    if peers is None:
        return Holding(limits=limits)
    return Holding(name, executes=settings.executes, limits=limits)


def source_of(
    settings: Settings, store: Store, holding: Holding, now: Callable[[], int]
) -> WakeupSource:
    """Where this process's wake-ups come from."""
    if store.peers is None:
        return AloneSource(store, now)
    return QueueSource(store.peers, holding, store, now, at_once=settings.wakeups_at_once)


async def agree_on_key(peers: Peers, secret: bytes) -> None:
    """Refuse to start with another host key than the database's first host had."""
    mine = hashlib.sha256(derive(secret, "fingerprint")).hexdigest()[:32]
    if await peers.agree(FINGERPRINT, mine) != mine:
        raise Refused(
            "this database belongs to hosts with another host key: set WOPR_HOST_KEY to theirs, "
            "base64 of the file host.key in the data directory of the first",
            field="host_key",
        )

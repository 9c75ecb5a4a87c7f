"""Creating runs: the first burst of each, and one at a time of a workflow where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import TypeAlias

import anyio

from wopr.engine.outcome import NodeFailure
from wopr.engine.state import RunIdentity, initial
from wopr.protocol.documents import Unset, encode
from wopr.protocol.errors import Conflict, QuotaExceeded, SequenceTaken, TooLarge, Unavailable
from wopr.protocol.offloading import Results, WorkNeeded, known_results
from wopr.runtime.active import ActiveRun
from wopr.runtime.advance import Advancer
from wopr.runtime.requests import NewRun
from wopr.runtime.starting import run_accepted, started_payload
from wopr.runtime.vault import Vault
from wopr.store.port import RememberedAnswer, RunFilter

Remember: TypeAlias = Callable[[bytes], RememberedAnswer]

UNFINISHED: tuple[str, ...] = (
    "pending",
    "running",
    "paused",
    "waiting-approval",
    "waiting-input",
    "waiting-external",
    "cancelling",
)
DEDUP_RETRY_SECONDS = 5
# How long a tenant that had no room for a run is refused further runs at once.
FULL_MS = 250


@contextmanager
def refusing_large_data() -> Generator[None, None, None]:
    """Answer 413 where what a client sent is too large for the log."""
    try:
        yield
    except NodeFailure as failure:
        raise TooLarge(failure.error.message) from failure


class Creator:
    """Starts runs."""

    def __init__(self, advancer: Advancer) -> None:
        self._advancer = advancer
        self._journal = advancer.journal
        self._deduplicating = anyio.Lock()
        # Tenants that have as many active runs as they may have: until when that is taken for
        # granted, and the refusal.
        self._full: dict[str, tuple[int, QuotaExceeded]] = {}

    async def create(self, new: NewRun, remember: Remember | None = None) -> bytes:
        """Start a run and return the encoded 201 answer.

        Every step that needs no waiting is taken at once, so a short run is created and
        completed by one append.
        """
        self._journal.quotas.check_new_run(new.owner.tenant)
        self._refuse_while_full(new.owner.tenant)
        try:
            return await self._create_alone(new, remember)
        except QuotaExceeded as refusal:
            self._full[new.owner.tenant] = (self._journal.now() + FULL_MS, refusal)
            raise

    def _refuse_while_full(self, tenant: str) -> None:
        """Refuse a run of a tenant that was refused one a moment ago, without asking the store."""
        full = self._full.get(tenant)
        if full is None:
            return
        until, refusal = full
        if self._journal.now() < until:
            raise refusal.with_traceback(None)
        del self._full[tenant]

    async def _create_alone(self, new: NewRun, remember: Remember | None) -> bytes:
        if not new.dedup:
            return await self._create(new, remember)
        async with self._deduplicating, self._alone(new):
            await self._refuse_if_active(new)
            return await self._create(new, remember)

    def _alone(self, new: NewRun) -> AbstractAsyncContextManager[None]:
        """Where processes share the store, one of them at a time looks and creates."""
        peers = self._journal.store.peers
        if peers is None:
            return nullcontext()
        return peers.alone(f"{new.owner.tenant}/{new.compiled.workflow_id}")

    async def _create(self, new: NewRun, remember: Remember | None) -> bytes:
        results = Results()
        while True:
            try:
                with known_results(results):
                    return await self._try_to_create(new, remember)
            except WorkNeeded as needed:
                subprocesses = self._journal.library.subprocesses
                await subprocesses.add(new.owner.tenant, needed, results)

    async def _try_to_create(self, new: NewRun, remember: Remember | None) -> bytes:
        compiled = new.compiled
        identity = RunIdentity(
            run_id=new.run_id or self._journal.new_id(),
            tenant=new.owner.tenant,
            workflow_id=compiled.workflow_id,
            workflow_version=compiled.version,
        )
        run = ActiveRun(initial(identity, compiled.graph), compiled, Vault(), None)
        burst = self._journal.burst(run)
        payload = started_payload(
            compiled,
            inputs=new.request.inputs,
            owner=new.owner,
            configurable=new.request.configurable,
            engine_version=new.engine_version,
            tags=new.request.tags,
            metadata=new.request.metadata,
            scopeId=None if isinstance(new.request.scope_id, Unset) else new.request.scope_id,
            traceparent=new.traceparent,
            transport=new.transport,
        )
        with refusing_large_data():
            burst.add("run.started", payload)
        answer = encode(run_accepted(identity, burst.iso))
        try:
            await self._advancer.begin(run, burst, remember(answer) if remember else None)
        except SequenceTaken:
            if new.run_id:
                raise
            # Nobody else has this id: the store was cut off after it had written, before it said so.
            raise Unavailable("the store was cut off; ask again with an Idempotency-Key") from None
        return answer

    async def _refuse_if_active(self, new: NewRun) -> None:
        where = RunFilter(statuses=UNFINISHED, workflow_id=new.compiled.workflow_id)
        page = await self._journal.store.runs(new.owner.tenant, where, None, 1)
        if page.runs:
            raise Conflict(
                f"a run of {new.compiled.workflow_id} is active already",
                code="run_already_active",
                activeRunId=page.runs[0].run_id,
                activeHost="cloud",
                retryAfter=DEDUP_RETRY_SECONDS,
            )

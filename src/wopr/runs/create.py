"""Creates runs: the first batch of a run, and deduplication by workflow."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext

import anyio

from wopr.engine.outcome import NodeFailure
from wopr.engine.state import RunIdentity, initial_state
from wopr.protocol.documents import Unset, encode
from wopr.protocol.errors import Conflict, QuotaExceeded, SequenceTaken, TooLarge, Unavailable
from wopr.protocol.offloading import Results, WorkNeeded, known_results
from wopr.runs.active import ActiveRun
from wopr.runs.advance import Advancer
from wopr.runs.requests import NewRun, run_accepted, started_payload
from wopr.runs.sensitive_values import SensitiveValues
from wopr.store.port import RecordBuilder, RunFilter

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
# The refusal of a run is repeated for this time without a read of the store.
REFUSAL_KEPT_MS = 250


@contextmanager
def refusing_large_data() -> Generator[None, None, None]:
    """Raise `TooLarge` when the data of a client is too large for the log."""
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
        # The last refusal of a new run by tenant, with the time until which it is repeated.
        self._refusals: dict[str, tuple[int, QuotaExceeded]] = {}

    async def create(self, new: NewRun, build_record: RecordBuilder | None = None) -> bytes:
        """Start a run and return the encoded 201 response.

        Steps that do not wait are applied at once, so one append creates and completes a short run.
        """
        self._journal.quotas.check_new_run(new.owner.tenant)
        self._refuse_again(new.owner.tenant)
        try:
            return await self._create_deduplicated(new, build_record)
        except QuotaExceeded as refusal:
            self._refusals[new.owner.tenant] = (self._journal.now() + REFUSAL_KEPT_MS, refusal)
            raise

    def _refuse_again(self, tenant: str) -> None:
        """Raise the last refusal of a tenant again while it is recent. The store is not read."""
        recent = self._refusals.get(tenant)
        if recent is None:
            return
        until, refusal = recent
        if self._journal.now() < until:
            raise refusal.with_traceback(None)
        del self._refusals[tenant]

    async def _create_deduplicated(self, new: NewRun, build_record: RecordBuilder | None) -> bytes:
        if not new.dedup:
            return await self._create(new, build_record)
        async with self._deduplicating, self._workflow_lock(new):
            await self._refuse_if_active(new)
            return await self._create(new, build_record)

    def _workflow_lock(self, new: NewRun) -> AbstractAsyncContextManager[None]:
        """Lock the workflow across processes: only one of them checks and creates at a time."""
        peers = self._journal.store.peers
        if peers is None:
            return nullcontext()
        return peers.exclusive(f"{new.owner.tenant}/{new.compiled.workflow_id}")

    async def _create(self, new: NewRun, build_record: RecordBuilder | None) -> bytes:
        results = Results()
        while True:
            try:
                with known_results(results):
                    return await self._try_to_create(new, build_record)
            except WorkNeeded as needed:
                subprocesses = self._journal.library.subprocesses
                await subprocesses.add_result(new.owner.tenant, needed, results)

    async def _try_to_create(self, new: NewRun, build_record: RecordBuilder | None) -> bytes:
        compiled = new.compiled
        identity = RunIdentity(
            run_id=new.run_id or self._journal.new_id(),
            tenant=new.owner.tenant,
            workflow_id=compiled.workflow_id,
            workflow_version=compiled.version,
        )
        run = ActiveRun(initial_state(identity, compiled.graph), compiled, SensitiveValues(), None)
        batch = self._journal.batch(run)
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
            batch.add("run.started", payload)
        response = encode(run_accepted(identity, batch.iso))
        try:
            await self._advancer.begin(run, batch, build_record(response) if build_record else None)
        except SequenceTaken:
            if new.run_id:
                raise
            # The id is new, so the store has written the run and its reply was lost.
            raise Unavailable(
                "The connection to the store was lost. Try again with an Idempotency-Key."
            ) from None
        return response

    async def _refuse_if_active(self, new: NewRun) -> None:
        where = RunFilter(statuses=UNFINISHED, workflow_id=new.compiled.workflow_id)
        page = await self._journal.store.runs(new.owner.tenant, where, None, 1)
        if page.runs:
            raise Conflict(
                f"A run of {new.compiled.workflow_id} is active already.",
                code="run_already_active",
                activeRunId=page.runs[0].run_id,
                activeHost="cloud",
                retryAfter=DEDUP_RETRY_SECONDS,
            )

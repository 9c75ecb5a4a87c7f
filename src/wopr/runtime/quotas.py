"""Quotas of tenants and keys: their limits, what is counted in this process, and who is over.

Defaults are settings. An operator can replace each of them for one tenant or one key; this is kept in
the store and read again every few seconds. What lies in the store (runs, bytes, tokens) is counted
there. Rates are counted in this process alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import anyio
import structlog

from wopr.nodes.models import Asking, ModelAnswer, ModelFault, ModelRequest, Models
from wopr.protocol.documents import UNSET
from wopr.protocol.errors import QuotaExceeded, RateLimited, WoprError
from wopr.protocol.fleet import RateSnapshot
from wopr.protocol.quotas import KEY_QUOTAS, TENANT_QUOTAS, QuotaScope, QuotaUse, UsageReport
from wopr.protocol.times import to_iso
from wopr.runtime.settings import DAY_MS, Settings
from wopr.security.buckets import RECENT_SECONDS, SecondCounts, TokenBuckets, whole_seconds
from wopr.store.port import SHARED, Store
from wopr.store.port.runs import CreationLimits
from wopr.store.port.usage import StoredUsage

# How often the store is asked for the use of tenants that start runs, and for changed quotas.
REFRESH_SECONDS: Final = 1.0
REREAD_ROUNDS: Final = 5
# When to come back after a quota of stored data: it shrinks with retention.
STORED_RETRY_SECONDS: Final = 60
# How far beyond its quotas of bytes a tenant is when its runs that have begun write no more, in
# percent of the quota.
RUNS_STOP_PERCENT: Final = 110

# Quotas whose use is kept in the store for each tenant, for metrics.
STORED_QUOTAS: Final = ("activeRuns", "storedBytes", "artifactBytes", "workflowVersions", "agents")

log = structlog.get_logger("wopr.quotas")


class PushLimit:
    """A tenant may push KAHN lines `rate` times a second, with bursts of twice as many."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._buckets: TokenBuckets[str] = TokenBuckets(rate, clock)

    def spend(self, tenant: str) -> None:
        """Take a token of a tenant. Raises `RateLimited` that says when there will be one."""
        wait = self._buckets.take(tenant)
        if wait:
            raise RateLimited(
                f"this tenant may push {self._rate} times a second",
                retry_after=whole_seconds(wait),
                scope="tenant",
                quota="pushesPerSecond",
                limit=self._rate,
            )

    def snapshot(self, tenant: str) -> RateSnapshot | None:
        """Return how much a tenant may push now, without taking a token; None without a limit."""
        if not self._rate:
            return None
        return RateSnapshot(
            capacity=2.0 * self._rate,
            refill_rate_per_sec=float(self._rate),
            remaining_tokens=self._buckets.remaining(tenant),
            recent_throttled_count=self._buckets.recent_refusals(tenant),
            window_s=RECENT_SECONDS,
        )


@dataclass(slots=True)
class QuotaTotal:
    """One quota over all tenants: use, limits, and the number of tenants that have no room left."""

    used: int = 0
    # The sum of the limits of tenants that use something; infinite if one of them has no limit.
    limit: float = 0
    full: int = 0

    def add(self, current: int, limit: int) -> None:
        """Add one tenant; a limit of 0 is no limit."""
        if current > 0:
            self.used += current
            self.limit += limit or math.inf
            self.full += bool(limit) and current >= limit


class Quotas:
    """The quotas of all tenants and keys, and the rates of this process."""

    def __init__(
        self, store: Store, settings: Settings, now: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._now = now
        self._descendants = settings.max_descendants
        self._of_tenants = {
            "requestsPerSecond": settings.quota_requests_per_second,
            "activeRuns": settings.max_active_runs,
            "queuedRuns": settings.quota_queued_runs,
            "streams": settings.max_streams_per_tenant,
            "storedBytes": settings.quota_stored_bytes,
            "artifactBytes": settings.quota_artifact_bytes,
            "workflowVersions": settings.quota_workflow_versions,
            "agents": settings.quota_agents,
            "eventsPerSecond": settings.quota_events_per_second,
            "modelTokensPerDay": settings.quota_model_tokens_per_day,
        }
        self._of_keys = {
            "requestsPerSecond": settings.rate_limit,
            "streams": settings.max_streams_per_key,
        }
        # Quotas that an operator has set, by tenant and key; a tenant's own has an empty key.
        self._set: dict[tuple[str, str], dict[str, int]] = {}
        self._default_limits = CreationLimits(
            active_runs=settings.max_active_runs, descendants=settings.max_descendants
        )
        self._requests: TokenBuckets[tuple[str, str]] = TokenBuckets(0, clock)
        self._events: TokenBuckets[str] = TokenBuckets(0, clock)
        # Requests that were admitted and events, as they are shown.
        self._counted_requests: SecondCounts[tuple[str, str]] = SecondCounts(clock)
        self._counted_events: SecondCounts[str] = SecondCounts(clock)
        # Tenants that wrote since the last look, and the refusals of those over a quota of what is
        # stored, by quota.
        self._seen: set[str] = set()
        self._full: dict[str, dict[str, QuotaExceeded]] = {}
        # The refusals of tenants so far beyond a quota of bytes that their runs write no more.
        self._beyond: dict[str, QuotaExceeded] = {}
        # Open streams of a tenant and of a key of it, as the stream limits count them.
        self.open_streams: Callable[[str, str], tuple[int, int]] | None = None
        # Runs of a tenant that wait for a turn in this process.
        self.waiting_runs: Callable[[str], int] = lambda tenant: 0

    def limit(self, quota: str, tenant: str, key_id: str = "") -> int:
        """Return the limit of a tenant, or of a key; 0 is no limit."""
        if self._set:
            own = self._set.get((tenant, key_id))
            if own is not None and quota in own:
                return own[quota]
        return (self._of_keys if key_id else self._of_tenants).get(quota, 0)

    def creation_limits(self, tenant: str) -> CreationLimits:
        """Return what a new run of a tenant must fit into."""
        if (tenant, "") not in self._set:
            return self._default_limits
        return CreationLimits(
            active_runs=self.limit("activeRuns", tenant), descendants=self._descendants
        )

    # -- rates of this process

    def spend_request(self, tenant: str, key_id: str) -> None:
        """Count a request. Raises `RateLimited` when its key or its tenant makes too many."""
        self._take_request(tenant, key_id, "key")
        self._take_request(tenant, "", "tenant")
        self._counted_requests.add((tenant, key_id))
        self._counted_requests.add((tenant, ""))

    def _take_request(self, tenant: str, key_id: str, scope: QuotaScope) -> None:
        rate = self.limit("requestsPerSecond", tenant, key_id)
        wait = self._requests.take((tenant, key_id), rate=rate)
        if wait:
            raise RateLimited(
                f"this {scope} may make {rate} requests a second",
                retry_after=whole_seconds(wait),
                scope=scope,
                quota="requestsPerSecond",
                limit=rate,
                current=rate,
            )

    def appended(self, tenant: str, events: int) -> None:
        """Count events that were appended. A tenant that is over its rate is delayed."""
        self._seen.add(tenant)
        self._counted_events.add(tenant, events)
        rate = self.limit("eventsPerSecond", tenant)
        if rate:
            self._events.charge(tenant, events, rate=rate)

    def delay(self, tenant: str) -> float:
        """Return for how many seconds the runs of a tenant are not advanced, because of its rate."""
        rate = self.limit("eventsPerSecond", tenant)
        return self._events.wait(tenant, rate=rate) if rate else 0.0

    # -- new runs, and other writes

    def check_new_run(self, tenant: str) -> None:
        """Raise `QuotaExceeded` for a tenant that must not start a run now.

        What is stored is known from the last look at the store, a second ago or so.
        """
        self._seen.add(tenant)
        full = self._full.get(tenant)
        if full is not None:
            raise next(iter(full.values())).with_traceback(None)
        wait = self.delay(tenant)
        if wait:
            rate = self.limit("eventsPerSecond", tenant)
            raise _exceeded("eventsPerSecond", rate, rate, whole_seconds(wait))

    def check_push(self, tenant: str) -> None:
        """Raise `QuotaExceeded` for a tenant that was beyond its stored bytes a second ago or so.

        This is for frequent writes: it does not ask the store.
        """
        self._seen.add(tenant)
        full = self._full.get(tenant)
        if full is not None and "storedBytes" in full:
            raise full["storedBytes"].with_traceback(None)

    def beyond(self, tenant: str) -> QuotaExceeded | None:
        """Return why the nodes of a tenant write no more, or None.

        This is for every batch of events: it does not ask the store.
        """
        return self._beyond.get(tenant)

    async def check_write(self, tenant: str, counted: str = "storedBytes") -> None:
        """Raise `QuotaExceeded` for a tenant beyond its stored bytes or the quota `counted`."""
        use = _stored(await self._store.usage(tenant, self._now()))
        for quota in ("storedBytes", counted):
            limit = self.limit(quota, tenant)
            if limit and use[quota] >= limit:
                raise _exceeded(quota, limit, use[quota], STORED_RETRY_SECONDS)

    async def run_forever(self) -> None:
        """Keep up with quotas that are changed and with what tenants have stored."""
        rounds = 0
        while True:
            try:
                if rounds % REREAD_ROUNDS == 0:
                    await self.read()
                await self._look()
            except WoprError as error:
                log.error("quotas wait for the store", code=error.code)
            rounds += 1
            await anyio.sleep(REFRESH_SECONDS)

    async def read(self) -> None:
        """Read the quotas that an operator has set."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        for row in await self._store.quotas():
            found.setdefault((row.tenant, row.key_id), {})[row.quota] = row.amount
        self._set = found

    async def _look(self) -> None:
        """Find out which of the tenants that write are over a quota of what is stored."""
        seen, self._seen = self._seen, set()
        for tenant in seen | self._full.keys():
            usage = await self._store.usage(tenant, self._now())
            excess = self._excess(tenant, usage)
            if excess:
                self._full[tenant] = excess
            else:
                self._full.pop(tenant, None)
            quota = self._stopping_quota(tenant, usage)
            if quota:
                self._beyond[tenant] = excess[quota]
            else:
                self._beyond.pop(tenant, None)

    def _excess(self, tenant: str, usage: StoredUsage) -> dict[str, QuotaExceeded]:
        counted = (
            ("queuedRuns", self._queued(tenant, usage), 1),
            ("storedBytes", usage.stored_bytes, STORED_RETRY_SECONDS),
            ("artifactBytes", usage.artifact_bytes, STORED_RETRY_SECONDS),
        )
        found: dict[str, QuotaExceeded] = {}
        for quota, current, retry_after in counted:
            limit = self.limit(quota, tenant)
            if limit and current >= limit:
                found[quota] = _exceeded(quota, limit, current, retry_after)
        return found

    def _stopping_quota(self, tenant: str, usage: StoredUsage) -> str:
        """Name the quota that a tenant is so far beyond that its runs write no more, or ""."""
        stored = _stored(usage)
        for quota in ("storedBytes", "artifactBytes"):
            limit = self.limit(quota, tenant)
            if limit and stored[quota] * 100 > limit * RUNS_STOP_PERCENT:
                return quota
        return ""

    def _queued(self, tenant: str, usage: StoredUsage) -> int:
        """Runs that are due. Those that wait for a turn here may not be due in the store."""
        return max(usage.queued_runs, self.waiting_runs(tenant))

    # -- model tokens

    async def check_model_tokens(self, tenant: str) -> None:
        """Raise `ModelFault` when a tenant has used its model tokens of this day."""
        limit = self.limit("modelTokensPerDay", tenant)
        if not limit:
            return
        current = await self._store.model_tokens(tenant, self._day())
        if current >= limit:
            left = (DAY_MS - self._now() % DAY_MS) // 1000
            full = _exceeded("modelTokensPerDay", limit, current, max(1, left))
            raise ModelFault(full.message, code=full.code, retryable=False, details=full.details)

    async def add_model_tokens(self, tenant: str, tokens: int) -> None:
        """Count tokens that a model has used for a tenant."""
        if tokens:
            await self._store.add_model_tokens(tenant, self._day(), tokens)

    def _day(self) -> str:
        return datetime.fromtimestamp(self._now() / 1000, UTC).date().isoformat()

    # -- what is shown

    async def report(self, tenant: str, key_id: str) -> UsageReport:
        """Show the use of a tenant and of one of its keys. Rates are those of the last whole second."""
        usage = await self._store.usage(tenant, self._now())
        streams = (0, 0) if self.open_streams is None else self.open_streams(tenant, key_id)
        current = {
            "requestsPerSecond": self._counted_requests.last((tenant, "")),
            "queuedRuns": self._queued(tenant, usage),
            "streams": streams[0],
            **_stored(usage),
            "eventsPerSecond": self._counted_events.last(tenant),
            "modelTokensPerDay": await self._store.model_tokens(tenant, self._day()),
        }
        of_key = {
            "requestsPerSecond": self._counted_requests.last((tenant, key_id)),
            "streams": streams[1],
        }
        tenants = [
            self._use(quota, "tenant", current[quota], self.limit(quota, tenant))
            for quota in TENANT_QUOTAS
        ]
        keys = [
            self._use(quota, "key", of_key[quota], self.limit(quota, tenant, key_id))
            for quota in KEY_QUOTAS
        ]
        return UsageReport(tenant=tenant, key_id=key_id, quotas=tenants + keys)

    async def totals(self) -> dict[str, QuotaTotal]:
        """Add up what all tenants have stored, and their limits."""
        totals = {quota: QuotaTotal() for quota in STORED_QUOTAS}
        for tenant, usage in (await self._store.all_usage()).items():
            if tenant == SHARED:
                continue
            for quota, current in _stored(usage).items():
                totals[quota].add(current, self.limit(quota, tenant))
        return totals

    def _use(self, quota: str, scope: QuotaScope, current: int, limit: int) -> QuotaUse:
        is_daily = quota == "modelTokensPerDay"
        tomorrow = (self._now() // DAY_MS + 1) * DAY_MS
        return QuotaUse(
            quota=quota,
            scope=scope,
            description=TENANT_QUOTAS[quota][0],
            current=max(0, current),
            limit=limit or UNSET,
            window="day" if is_daily else "second" if quota.endswith("PerSecond") else UNSET,
            resets_at=to_iso(tomorrow) if is_daily else UNSET,
        )


def _stored(usage: StoredUsage) -> dict[str, int]:
    """Return the use of the quotas of `STORED_QUOTAS`."""
    return {
        "activeRuns": usage.active_runs,
        "storedBytes": usage.stored_bytes,
        "artifactBytes": usage.artifact_bytes,
        "workflowVersions": usage.workflow_versions,
        "agents": usage.agents,
    }


def _exceeded(quota: str, limit: int, current: int, retry_after: int) -> QuotaExceeded:
    way_out = TENANT_QUOTAS[quota][1]
    return QuotaExceeded(
        quota, limit=limit, current=current, way_out=way_out, retry_after=retry_after
    )


class CountedModels:
    """Models whose tokens are counted, and refused beyond the quota of the day."""

    def __init__(self, models: Models, quotas: Quotas) -> None:
        self._models = models
        self._quotas = quotas

    async def ask(self, request: ModelRequest, asking: Asking) -> ModelAnswer:
        """Answer one request, if its tenant has tokens left. Raises `ModelFault`."""
        await self._quotas.check_model_tokens(asking.tenant)
        answer = await self._models.ask(request, asking)
        used = answer.usage.input_tokens + answer.usage.output_tokens
        await self._quotas.add_model_tokens(asking.tenant, used)
        return answer

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """Return what a model can do."""
        return self._models.capabilities(provider, model)

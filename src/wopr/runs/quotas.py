"""Quotas of tenants and keys: limits, counters of this process, and refusals.

Defaults are settings. An operator can replace each of them for one tenant or one key; these values
are in the store and are read again every few seconds. Runs, bytes and tokens are counted in the
store. Rates are counted in this process alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from wopr.agents.models.port import ModelAnswer, ModelFault, ModelRequest, Models, RequestOptions
from wopr.cluster.scheduler import FairScheduler
from wopr.process.background import BackgroundTask
from wopr.process.settings import DAY_MS, Settings
from wopr.protocol.documents import UNSET, to_iso
from wopr.protocol.errors import QuotaExceeded, RateLimited
from wopr.protocol.resources.fleet import RateSnapshot
from wopr.protocol.resources.quotas import (
    KEY_QUOTAS,
    TENANT_QUOTAS,
    QuotaScope,
    QuotaUse,
    UsageReport,
)
from wopr.security.buckets import RECENT_SECONDS, PerSecondCounts, TokenBuckets, whole_seconds
from wopr.store.port import SHARED, Store
from wopr.store.port.runs import CreationLimits
from wopr.store.port.usage import StoredUsage

# The interval at which the use of tenants is read, and the rounds between reads of the quotas.
REFRESH_SECONDS: Final = 1.0
REREAD_ROUNDS: Final = 5
# `Retry-After` for a quota of stored data, which shrinks with retention.
STORED_RETRY_SECONDS: Final = 60
# Percentage of a quota of bytes above which the active runs of a tenant may not write.
RUNS_STOP_PERCENT: Final = 110

# Quotas whose use is kept in the store for each tenant, for metrics.
STORED_QUOTAS: Final = ("activeRuns", "storedBytes", "artifactBytes", "workflowVersions", "agents")


class PushLimit:
    """A tenant may push KAHN lines `rate` times a second, with bursts of twice as many."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._buckets: TokenBuckets[str] = TokenBuckets(rate, clock)

    def take(self, tenant: str) -> None:
        """Take a token of a tenant. Raises `RateLimited` with the time until the next token."""
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
    """One quota over all tenants: use, limits, and the number of tenants that have used it up."""

    used: int = 0
    # The sum of the limits of tenants that use something; infinite if one of them has no limit.
    limit: float = 0
    exhausted: int = 0

    def add(self, current: int, limit: int) -> None:
        """Add one tenant; a limit of 0 is no limit."""
        if current > 0:
            self.used += current
            self.limit += limit or math.inf
            self.exhausted += bool(limit) and current >= limit


class Quotas:
    """The quotas of all tenants and keys, and the rates of this process."""

    def __init__(
        self, store: Store, settings: Settings, now: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._now = now
        self._descendants = settings.max_descendants
        self._tenant_defaults = {
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
        self._key_defaults = {
            "requestsPerSecond": settings.rate_limit,
            "streams": settings.max_streams_per_key,
        }
        # Quotas that an operator has set, by tenant and key. The key of a tenant's quota is empty.
        self._overrides: dict[tuple[str, str], dict[str, int]] = {}
        self._default_limits = CreationLimits(
            active_runs=settings.max_active_runs, descendants=settings.max_descendants
        )
        self._requests: TokenBuckets[tuple[str, str]] = TokenBuckets(0, clock)
        self._events: TokenBuckets[str] = TokenBuckets(0, clock)
        # Counts of admitted requests and of events, for reports.
        self._counted_requests: PerSecondCounts[tuple[str, str]] = PerSecondCounts(clock)
        self._counted_events: PerSecondCounts[str] = PerSecondCounts(clock)
        # Tenants that wrote since the last read, and the errors for tenants over a quota of stored
        # data, by quota.
        self._recent_tenants: set[str] = set()
        self._exceeded_quotas: dict[str, dict[str, QuotaExceeded]] = {}
        # The errors for tenants whose active runs may not write.
        self._write_refusals: dict[str, QuotaExceeded] = {}
        # Returns the number of open streams of a tenant, and of one of its keys. The HTTP layer,
        # which counts the streams, sets it when it opens.
        self.open_streams: Callable[[str, str], tuple[int, int]] | None = None
        # Schedules the advances of runs. A tenant over its rate of events waits.
        self.scheduler = FairScheduler(self.delay)
        self._rounds = 0
        self.task = BackgroundTask(
            "quotas",
            self._refresh,
            period=REFRESH_SECONDS,
            max_retry_seconds=REFRESH_SECONDS,
        )

    def limit(self, quota: str, tenant: str, key_id: str = "") -> int:
        """Return the limit of a tenant, or of a key; 0 is no limit."""
        if self._overrides:
            own = self._overrides.get((tenant, key_id))
            if own is not None and quota in own:
                return own[quota]
        return (self._key_defaults if key_id else self._tenant_defaults).get(quota, 0)

    def creation_limits(self, tenant: str) -> CreationLimits:
        """Return the limits for a new run of a tenant."""
        if (tenant, "") not in self._overrides:
            return self._default_limits
        return CreationLimits(
            active_runs=self.limit("activeRuns", tenant), descendants=self._descendants
        )

    # -- rates of this process

    def count_request(self, tenant: str, key_id: str) -> None:
        """Count a request. Raises `RateLimited` when its key or its tenant makes too many."""
        self._check_rate(tenant, key_id, "key")
        self._check_rate(tenant, "", "tenant")
        self._counted_requests.add((tenant, key_id))
        self._counted_requests.add((tenant, ""))

    def _check_rate(self, tenant: str, key_id: str, scope: QuotaScope) -> None:
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

    def count_events(self, tenant: str, events: int) -> None:
        """Count appended events. A tenant that is over its rate is delayed."""
        self._recent_tenants.add(tenant)
        self._counted_events.add(tenant, events)
        rate = self.limit("eventsPerSecond", tenant)
        if rate:
            self._events.charge(tenant, events, rate=rate)

    def delay(self, tenant: str) -> float:
        """Return for how many seconds a tenant's runs are not advanced, because of its rate."""
        rate = self.limit("eventsPerSecond", tenant)
        return self._events.seconds_until_token(tenant, rate=rate) if rate else 0.0

    # -- new runs, and other writes

    def check_new_run(self, tenant: str) -> None:
        """Raise `QuotaExceeded` for a tenant that must not start a run now.

        The use of stored data is from the last read of the store, about a second ago.
        """
        self._recent_tenants.add(tenant)
        exceeded = self._exceeded_quotas.get(tenant)
        if exceeded is not None:
            raise next(iter(exceeded.values())).with_traceback(None)
        wait = self.delay(tenant)
        if wait:
            rate = self.limit("eventsPerSecond", tenant)
            raise _quota_exceeded("eventsPerSecond", rate, rate, whole_seconds(wait))

    def check_push(self, tenant: str) -> None:
        """Raise `QuotaExceeded` for a tenant that was over its stored bytes at the last read.

        The last read of the store is about a second old. This method does not read it, so it can be
        called for frequent writes.
        """
        self._recent_tenants.add(tenant)
        exceeded = self._exceeded_quotas.get(tenant)
        if exceeded is not None and "storedBytes" in exceeded:
            raise exceeded["storedBytes"].with_traceback(None)

    def write_refusal(self, tenant: str) -> QuotaExceeded | None:
        """Return the error for nodes of a tenant that may not write, or None.

        The store is not read, so this can be called for every batch.
        """
        return self._write_refusals.get(tenant)

    async def check_write(self, tenant: str, counted: str = "storedBytes") -> None:
        """Raise `QuotaExceeded` for a tenant beyond its stored bytes or the quota `counted`."""
        use = _stored_use(await self._store.usage(tenant, self._now()))
        for quota in ("storedBytes", counted):
            limit = self.limit(quota, tenant)
            if limit and use[quota] >= limit:
                raise _quota_exceeded(quota, limit, use[quota], STORED_RETRY_SECONDS)

    async def _refresh(self) -> None:
        """Read changed quotas, and find the tenants over a quota of stored data."""
        if self._rounds % REREAD_ROUNDS == 0:
            await self.read()
        self._rounds += 1
        await self._find_excess()

    async def read(self) -> None:
        """Read the quotas that an operator has set."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        for row in await self._store.quotas():
            found.setdefault((row.tenant, row.key_id), {})[row.quota] = row.amount
        self._overrides = found

    async def _find_excess(self) -> None:
        """Find the tenants over a quota of stored data, among those that write."""
        tenants, self._recent_tenants = self._recent_tenants, set()
        for tenant in tenants | self._exceeded_quotas.keys():
            usage = await self._store.usage(tenant, self._now())
            excess = self._excess(tenant, usage)
            if excess:
                self._exceeded_quotas[tenant] = excess
            else:
                self._exceeded_quotas.pop(tenant, None)
            quota = self._stopping_quota(tenant, usage)
            if quota:
                self._write_refusals[tenant] = excess[quota]
            else:
                self._write_refusals.pop(tenant, None)

    def _excess(self, tenant: str, usage: StoredUsage) -> dict[str, QuotaExceeded]:
        counted = (
            ("queuedRuns", self._queued_runs(tenant, usage), 1),
            ("storedBytes", usage.stored_bytes, STORED_RETRY_SECONDS),
            ("artifactBytes", usage.artifact_bytes, STORED_RETRY_SECONDS),
        )
        found: dict[str, QuotaExceeded] = {}
        for quota, current, retry_after in counted:
            limit = self.limit(quota, tenant)
            if limit and current >= limit:
                found[quota] = _quota_exceeded(quota, limit, current, retry_after)
        return found

    def _stopping_quota(self, tenant: str, usage: StoredUsage) -> str:
        """Return the quota that a tenant exceeds so far that its runs may not write, or ""."""
        stored = _stored_use(usage)
        for quota in ("storedBytes", "artifactBytes"):
            limit = self.limit(quota, tenant)
            if limit and stored[quota] * 100 > limit * RUNS_STOP_PERCENT:
                return quota
        return ""

    def _queued_runs(self, tenant: str, usage: StoredUsage) -> int:
        """Count the runs that are due. Those that wait for a slot may not be due in the store."""
        return max(usage.queued_runs, self.scheduler.waiting_of(tenant))

    # -- model tokens

    async def check_model_tokens(self, tenant: str) -> None:
        """Raise `ModelFault` when a tenant has used its model tokens of this day."""
        limit = self.limit("modelTokensPerDay", tenant)
        if not limit:
            return
        current = await self._store.model_tokens(tenant, self._day())
        if current >= limit:
            seconds_left = (DAY_MS - self._now() % DAY_MS) // 1000
            error = _quota_exceeded("modelTokensPerDay", limit, current, max(1, seconds_left))
            raise ModelFault(error.message, code=error.code, retryable=False, details=error.details)

    async def add_model_tokens(self, tenant: str, tokens: int) -> None:
        """Count tokens that a model has used for a tenant."""
        if tokens:
            await self._store.add_model_tokens(tenant, self._day(), tokens)

    def _day(self) -> str:
        return datetime.fromtimestamp(self._now() / 1000, UTC).date().isoformat()

    # -- reports

    async def report(self, tenant: str, key_id: str) -> UsageReport:
        """Return the use of a tenant and of one of its keys. Rates are of the last whole second."""
        usage = await self._store.usage(tenant, self._now())
        streams = (0, 0) if self.open_streams is None else self.open_streams(tenant, key_id)
        current = {
            "requestsPerSecond": self._counted_requests.count_of_last_second((tenant, "")),
            "queuedRuns": self._queued_runs(tenant, usage),
            "streams": streams[0],
            **_stored_use(usage),
            "eventsPerSecond": self._counted_events.count_of_last_second(tenant),
            "modelTokensPerDay": await self._store.model_tokens(tenant, self._day()),
        }
        of_key = {
            "requestsPerSecond": self._counted_requests.count_of_last_second((tenant, key_id)),
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
            for quota, current in _stored_use(usage).items():
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


def _stored_use(usage: StoredUsage) -> dict[str, int]:
    """Return the use of the quotas of `STORED_QUOTAS`."""
    return {
        "activeRuns": usage.active_runs,
        "storedBytes": usage.stored_bytes,
        "artifactBytes": usage.artifact_bytes,
        "workflowVersions": usage.workflow_versions,
        "agents": usage.agents,
    }


def _quota_exceeded(quota: str, limit: int, current: int, retry_after: int) -> QuotaExceeded:
    remedy = TENANT_QUOTAS[quota][1]
    return QuotaExceeded(
        quota, limit=limit, current=current, remedy=remedy, retry_after=retry_after
    )


class CountedModels:
    """Models whose tokens are counted, and refused beyond the quota of the day."""

    def __init__(self, models: Models, quotas: Quotas) -> None:
        self._models = models
        self._quotas = quotas

    async def ask(self, request: ModelRequest, options: RequestOptions) -> ModelAnswer:
        """Answer one request, if its tenant has tokens left. Raises `ModelFault`."""
        await self._quotas.check_model_tokens(options.tenant)
        answer = await self._models.ask(request, options)
        used = answer.usage.input_tokens + answer.usage.output_tokens
        await self._quotas.add_model_tokens(options.tenant, used)
        return answer

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """Return what a model can do."""
        return self._models.capabilities(provider, model)

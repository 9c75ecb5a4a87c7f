"""When a receiver is left alone: after failures in a row for a while, after too many for good."""

from __future__ import annotations

from dataclasses import dataclass, replace

from wopr.store.port.webhooks import Health

WEEK_MS = 7 * 86_400_000
LONGEST_BACKOFF_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """How patient the host is with receivers."""

    # The first retry comes after so long, and each further one after twice as long.
    retry_ms: int = 1000
    # So often an event is tried before it is given up.
    attempts: int = 12
    # After so many failures in a row nothing is sent for so long; then one event tries again.
    failures_to_open: int = 4
    open_ms: int = 3_600_000
    # After so many failures within a week the subscription has failed.
    failures_a_week: int = 100
    timeout_seconds: float = 5.0

    def backoff_ms(self, attempts: int) -> int:
        """How long to wait after that many failed attempts at one event."""
        return int(min(self.retry_ms * 2 ** min(attempts - 1, 30), LONGEST_BACKOFF_MS))


def after_success(health: Health) -> Health:
    """The receiver took an event: whatever was wrong is over."""
    if health.state == "active" and not health.failures:
        return health
    return Health(recent=health.recent)


def after_failure(health: Health, now: int, policy: DeliveryPolicy) -> Health:
    """The receiver did not take an event."""
    recent = (*(at for at in health.recent if at > now - WEEK_MS), now)
    failures = health.failures + 1
    if len(recent) >= policy.failures_a_week:
        return Health(state="failed", failures=failures, recent=recent)
    if failures < policy.failures_to_open:
        return replace(health, failures=failures, recent=recent)
    return Health(state="open", failures=failures, recent=recent, open_until=now + policy.open_ms)

"""Usage of the store by each tenant, and the quotas that an operator has set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wopr.store.port.audit import AuditDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUsage:
    """The current usage of the store by a tenant."""

    # Runs that have not ended.
    active_runs: int
    # Runs that are due and that no process has begun to advance.
    queued_runs: int
    # The bodies of all events, and of all artifacts.
    event_bytes: int
    artifact_bytes: int
    # Definitions, manifests, annotations, idempotency records, memories, review queues, judges,
    # dead letters of webhooks, KAHN lines, and traces that the fleet has not processed.
    other_bytes: int
    # All versions of all definitions, and of all agents.
    workflow_versions: int
    agents: int

    @property
    def stored_bytes(self) -> int:
        """All bytes except those of artifacts, which have a separate quota."""
        return self.event_bytes + self.other_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """A quota of one tenant, or of one of its keys, that replaces the default. 0 means no limit."""

    tenant: str
    quota: str
    amount: int
    # Empty for a quota of the tenant.
    key_id: str = ""


class Usage(Protocol):
    """Counters of each tenant's usage, and quotas."""

    async def usage(self, tenant: str, now: int) -> StoredUsage:
        """Return the usage of the tenant.

        Bytes are counters, so the cost does not depend on the size.
        """
        ...

    async def all_usage(self) -> dict[str, StoredUsage]:
        """Return the usage of each tenant with stored data.

        `queued_runs` is not counted and always 0.
        """
        ...

    async def recount_usage(self) -> None:
        """Recount the stored bytes of all tenants. This reads all events."""
        ...

    async def model_tokens(self, tenant: str, day: str) -> int:
        """Return how many model tokens the tenant has used on a day, `2027-01-31`."""
        ...

    async def add_model_tokens(self, tenant: str, day: str, tokens: int) -> None:
        """Add to the model tokens of a day."""
        ...

    async def quotas(self) -> list[QuotaRow]:
        """List all quotas of all tenants and keys that replace defaults."""
        ...

    async def set_quota(self, row: QuotaRow, audit: AuditDraft | None = None) -> None:
        """Set a quota in place of its default, and write the audit entry, both or neither."""
        ...

    async def reset_quota(
        self, tenant: str, key_id: str, quota: str, audit: AuditDraft | None = None
    ) -> bool:
        """Return a quota to its default, and write the audit entry; False if it was the default."""
        ...

"""What each tenant uses, and the quotas that an operator has set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wopr.store.port.audit import AuditDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUsage:
    """What a tenant uses of the store now."""

    # Runs that have not ended.
    active_runs: int
    # Runs that are due and that no process has begun to advance.
    queued_runs: int
    # The bodies of all events, and of all artifacts.
    event_bytes: int
    artifact_bytes: int
    # Definitions, manifests, annotations, remembered answers, memories, review queues, judges, dead
    # letters of webhooks, KAHN lines, and traces that the fleet has not been told of.
    other_bytes: int
    # All versions of all definitions, and of all agents.
    workflow_versions: int
    agents: int

    @property
    def stored_bytes(self) -> int:
        """All bytes except those of artifacts, which have a quota of their own."""
        return self.event_bytes + self.other_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """A quota of one tenant, or of one key of it, that replaces the default. 0 is no limit."""

    tenant: str
    quota: str
    amount: int
    # Empty for the tenant's own.
    key_id: str = ""


class Usage(Protocol):
    """Counters of a tenant's use, kept with what they count, and quotas."""

    async def usage(self, tenant: str, now: int) -> StoredUsage:
        """What the tenant uses. Bytes are kept as counters, so this costs the same at any size."""
        ...

    async def all_usage(self) -> dict[str, StoredUsage]:
        """What each tenant with any use has stored. Queued runs are not counted: they are 0."""
        ...

    async def recount_usage(self) -> None:
        """Recount the stored bytes of all tenants. This reads all events."""
        ...

    async def model_tokens(self, tenant: str, day: str) -> int:
        """How many model tokens the tenant has used on a day, `2027-01-31`."""
        ...

    async def add_model_tokens(self, tenant: str, day: str, tokens: int) -> None:
        """Add to the model tokens of a day."""
        ...

    async def quotas(self) -> list[QuotaRow]:
        """All quotas of all tenants and keys that replace defaults."""
        ...

    async def set_quota(self, row: QuotaRow, audit: AuditDraft | None = None) -> None:
        """Set a quota in place of its default, and write the audit entry, or neither."""
        ...

    async def reset_quota(
        self, tenant: str, key_id: str, quota: str, audit: AuditDraft | None = None
    ) -> bool:
        """Return to the default, and write the audit entry; False when it was not replaced."""
        ...

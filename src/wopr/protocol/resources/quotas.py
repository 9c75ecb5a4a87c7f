"""Quotas: their names, what each counts, and the documents of quotas and their use."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, NonEmpty, Unset
from wopr.protocol.errors import Refused

QuotaScope: TypeAlias = Literal["tenant", "key"]

# Each quota, with what it counts and how a client frees some of it.
TENANT_QUOTAS: Final[dict[str, tuple[str, str]]] = {
    "requestsPerSecond": ("API requests per second", "Send requests more slowly."),
    "activeRuns": ("Runs that have not ended", "Wait until runs have ended, or cancel runs."),
    "queuedRuns": ("Runs that are due and wait for a turn", "Wait until queued runs are executed."),
    "streams": ("Open event streams", "Close streams that are not read."),
    "storedBytes": (
        "Bytes of stored events, definitions, annotations, idempotency records, memories, webhook "
        "dead letters, KAHN lines and traces",
        "Wait until old runs and idempotency records are deleted by retention.",
    ),
    "artifactBytes": ("Bytes of stored artifacts", "Wait until old runs are deleted by retention."),
    "workflowVersions": (
        "Versions of all workflow definitions",
        "Versions are not deleted. Use a registered version.",
    ),
    "agents": (
        "Versions of all agent manifests",
        "Versions are not deleted. Use an installed version.",
    ),
    "eventsPerSecond": ("Events appended per second", "Wait, and start fewer runs at a time."),
    "modelTokensPerDay": ("Model tokens of this day (UTC)", "Wait for the next day, UTC."),
}
KEY_QUOTAS: Final = ("requestsPerSecond", "streams")
# The largest whole number that every JSON reader represents exactly.
LARGEST_LIMIT: Final = 2**53 - 1


class QuotaUse(Document, frozen=True, kw_only=True):
    """One quota, its use, and its limit if there is one."""

    quota: NonEmpty
    scope: QuotaScope
    description: NonEmpty
    current: Annotated[int, msgspec.Meta(ge=0)]
    limit: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    # The window in which use is counted; absent for a current total.
    window: Literal["second", "day"] | Unset = UNSET
    resets_at: str | Unset = UNSET


class UsageReport(Document, frozen=True, kw_only=True):
    """Use and quotas of a tenant and one of its keys."""

    tenant: str
    key_id: str
    quotas: list[QuotaUse]


class SetQuota(Closed, frozen=True, kw_only=True):
    """A new limit of a tenant, or of a key if `keyId` is present. 0 is no limit."""

    limit: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_LIMIT)]
    key_id: NonEmpty | Unset = UNSET


class QuotaSetting(Document, frozen=True, kw_only=True):
    """A quota that replaces its default; a limit of 0 is no limit."""

    tenant: str
    quota: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=0)]
    key_id: NonEmpty | Unset = UNSET


class QuotaList(Document, frozen=True, kw_only=True):
    """All quotas that replace defaults."""

    items: list[QuotaSetting]


def check_quota(quota: str, key_id: str) -> str:
    """Return the name of a quota. Raises `Refused` for one that a tenant or a key does not have."""
    known = KEY_QUOTAS if key_id else tuple(TENANT_QUOTAS)
    if quota not in known:
        owner = "key" if key_id else "tenant"
        raise Refused(
            f"quota must be one of {', '.join(known)} for a {owner}, not {quota!r}", field="quota"
        )
    return quota

"""The filters of the run list as a query, from options that several commands share."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wopr.cli.values import parse_moment
from wopr.protocol.times import to_iso


def moment(raw: str | None, option: str) -> str | None:
    """An option that names a time, or how long ago it was, as the wire writes it."""
    if not raw:
        return None
    return to_iso(parse_moment(raw, round(time.time() * 1000), option))


def run_query(
    *,
    status: Sequence[str] | None,
    workflow: str | None,
    tag: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, str]:
    """The query that selects runs."""
    filters = {
        "status": ",".join(status or []),
        "workflowId": workflow,
        "tag": tag,
        "since": moment(since, "--since"),
        "until": moment(until, "--until"),
    }
    return {name: value for name, value in filters.items() if value}

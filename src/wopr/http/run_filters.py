"""Which runs a query asks for."""

from __future__ import annotations

from wopr.http.exchange import Exchange
from wopr.http.operation import Parameter
from wopr.protocol.errors import Refused
from wopr.protocol.runs import RUN_STATUSES
from wopr.protocol.times import to_millis
from wopr.store.port import RunFilter

RUN_FILTERS = (
    Parameter(name="status", description="A comma list of statuses.", schema={"type": "string"}),
    Parameter(name="workflowId", description="Runs of it.", schema={"type": "string"}),
    Parameter(name="tag", description="Runs that carry it.", schema={"type": "string"}),
    Parameter(name="parentRunId", description="Its children.", schema={"type": "string"}),
    Parameter(name="sourceRunId", description="Its forks.", schema={"type": "string"}),
    Parameter(
        name="waitingForCode",
        description="With true: only runs that wait for a process with the code of a node. "
        "With false: all runs.",
        schema={"type": "boolean"},
    ),
    Parameter(
        name="quarantined",
        description="Runs that are in quarantine, or with `false` those that are not.",
        schema={"type": "string", "enum": ["true", "false"]},
    ),
    Parameter(
        name="since",
        description="Created at or after this time.",
        schema={"type": "string", "format": "date-time"},
    ),
    Parameter(
        name="until",
        description="Created before this time.",
        schema={"type": "string", "format": "date-time"},
    ),
    *(
        Parameter(
            name=name,
            description=f"Runs that were {name}, or with `false` those that were not.",
            schema={"type": "string", "enum": ["true", "false"]},
        )
        for name in ("flagged", "rated", "corrected")
    ),
    Parameter(
        name="label",
        description="Runs with an annotation of this label.",
        schema={"type": "string", "minLength": 1},
    ),
)


def run_filter(exchange: Exchange) -> RunFilter:
    """Which runs the query asks for."""
    query = exchange.query
    return RunFilter(
        statuses=_statuses(query.get("status")),
        workflow_id=query.get("workflowId"),
        tag=query.get("tag"),
        parent_run_id=query.get("parentRunId"),
        source_run_id=query.get("sourceRunId"),
        created_from=instant(exchange, "since"),
        created_before=instant(exchange, "until"),
        flagged=exchange.truth("flagged"),
        rated=exchange.truth("rated"),
        corrected=exchange.truth("corrected"),
        label=_label(exchange),
        waits_for_code=_waits_for_code(query.get("waitingForCode")),
        quarantined=exchange.truth("quarantined"),
    )


def _waits_for_code(raw: str | None) -> bool:
    if raw in (None, "true", "false"):
        return raw == "true"
    raise Refused(f'waitingForCode must be true or false, not "{raw}"', field="waitingForCode")


def _statuses(raw: str | None) -> tuple[str, ...]:
    if raw is None:
        return ()
    statuses = tuple(status.strip() for status in raw.split(","))
    if any(status not in RUN_STATUSES for status in statuses):
        raise Refused(f"status must be among {', '.join(RUN_STATUSES)}", field="status")
    return statuses


def _label(exchange: Exchange) -> str | None:
    raw = exchange.query.get("label")
    if raw is None:
        return None
    if not raw:
        raise Refused("label must not be empty", field="label")
    # Labels were redacted when they were stored.
    return exchange.redactor.text(raw)


def instant(exchange: Exchange, name: str) -> int | None:
    """A query parameter that must be a time."""
    raw = exchange.query.get(name)
    if raw is None:
        return None
    try:
        return to_millis(raw.replace(" ", "+"))
    except (ValueError, OverflowError):
        raise Refused(f"{name} must be an ISO 8601 time, not {raw[:40]!r}", field=name) from None

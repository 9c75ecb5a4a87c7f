"""The debug bundle: all data of one run in one document of limited size."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from wopr.process.tenant_slots import run_by_size
from wopr.protocol.documents import JsonObject, encode, to_iso
from wopr.runs.run_reader import RunReader
from wopr.store.port.feedback import Annotations
from wopr.version import __version__

VERSION: Final = "1.0"
MAX_BYTES: Final = 8_000_000
# Limits of the other parts, so that there is space for the events.
MAX_RUN_BYTES: Final = 3_000_000
MAX_ANNOTATIONS_BYTES: Final = 1_000_000
# Space for the names, brackets and commas around the parts.
_FRAME_BYTES: Final = 4096
_REDACTION_MARK: Final = b"[REDACTED"
_LARGE_MEMBERS: Final = ("variables", "channels", "outputs", "nodeStates", "metadata")
PAGE: Final = 200


@dataclass(slots=True)
class _BoundedList:
    """The encoded members of a list, up to a size and a number."""

    free_bytes: int
    most: int | None = None
    members: list[bytes] = field(default_factory=list[bytes])

    def take(self, member: bytes) -> bool:
        """Add a member; return False if it does not fit."""
        if self.most is not None and len(self.members) >= self.most:
            return False
        self.free_bytes -= len(member) + 1
        if self.free_bytes < 0:
            return False
        self.members.append(member)
        return True

    def to_json(self) -> bytes:
        """Return the list as JSON."""
        return b"[%b]" % b",".join(self.members)


async def build_debug_bundle(
    run_reader: RunReader,
    annotations: Annotations,
    tenant: str,
    run_id: str,
    *,
    now: int,
    most_events: int | None = None,
) -> bytes:
    """Return the snapshot, log, spans, metrics and annotations of a run, redacted as stored."""
    found = await run_reader.snapshot(tenant, run_id)
    size = len(found.body)
    run: JsonObject = await run_by_size(size, partial(msgspec.json.decode, found.body))
    # Inputs are left out: they may be personal data, and bundles are shared.
    has_inputs = bool(run.pop("inputs", None))
    reasons: list[str] = []
    spans = _spans(run)
    encoded = await run_by_size(size, partial(encode, run))
    if len(encoded) > MAX_RUN_BYTES:
        run = {name: value for name, value in run.items() if name not in _LARGE_MEMBERS}
        encoded = encode(run)
        reasons.append("run_values_omitted_to_size_cap")
    notes = _BoundedList(MAX_ANNOTATIONS_BYTES)
    async for body in _all_annotations(annotations, tenant, run_id):
        if not notes.take(body):
            reasons.append("annotations_truncated_to_size_cap")
            break
    head = encoded, encode(spans), notes.to_json()
    free_bytes = MAX_BYTES - sum(map(len, head)) - _FRAME_BYTES
    total = found.sequence + 1
    events = _BoundedList(free_bytes, most_events)
    async for event in run_reader.all_events(tenant, run_id):
        if event.sequence > found.sequence or not events.take(event.body):
            break
    if len(events.members) < total:
        is_requested_limit = most_events is not None and len(events.members) >= most_events
        reasons.append(
            "events_truncated_to_max_events"
            if is_requested_limit
            else "events_truncated_to_size_cap"
        )
    is_marked = any(_REDACTION_MARK in part for part in (*head, *events.members))
    members: dict[str, object] = {
        "bundleVersion": VERSION,
        "generatedAt": to_iso(now),
        "host": {"name": "wopr", "version": __version__, "vendor": "wopr"},
        "run": msgspec.Raw(head[0]),
        "events": msgspec.Raw(events.to_json()),
        "spans": msgspec.Raw(head[1]),
        "metrics": _metrics(run, total),
        "annotations": msgspec.Raw(head[2]),
        "redactionApplied": has_inputs or is_marked,
        "redactionMode": "mask",
        "truncated": bool(reasons),
    }
    if reasons:
        members["truncatedReason"] = ",".join(reasons)
    return encode(members)


async def _all_annotations(
    annotations: Annotations, tenant: str, run_id: str
) -> AsyncIterator[bytes]:
    after: tuple[int, str] | None = None
    while rows := await annotations.annotations(tenant, run_id, after, PAGE):
        for row in rows:
            yield row.body
        after = rows[-1].created_at, rows[-1].annotation_id


def _metrics(run: JsonObject, total: int) -> JsonObject:
    """Return the metrics of the whole run, even if the bundle contains only a part."""
    cost = run.get("metrics", {}).get("openwopCost")
    counts = {"nodeCount": len(run.get("nodeStates", {})), "eventCount": total}
    return counts if cost is None else {"openwopCost": cost, **counts}


def _spans(run: JsonObject) -> list[JsonObject]:
    """Return a span for the run and for each node that ran, with a fixed list of attributes."""
    root = _span_id(run["runId"], "")
    attributes = {"openwop.run_id": run["runId"], "openwop.workflow_id": run["workflowId"]}
    spans = [_span("openwop.run", root, None, run, attributes | {"openwop.status": run["status"]})]
    for node_id, node in run.get("nodeStates", {}).items():
        if "startedAt" in node:
            named = {"openwop.node_id": node_id, "openwop.status": node["status"]}
            span_id = _span_id(run["runId"], node_id)
            spans.append(_span("openwop.node", span_id, root, node, attributes | named))
    return spans


def _span(
    name: str, span_id: str, parent: str | None, timed: JsonObject, attributes: JsonObject
) -> JsonObject:
    span: JsonObject = {
        "name": name,
        "spanId": span_id,
        "parentSpanId": parent,
        "attributes": attributes,
        "endedAt": timed.get("completedAt"),
    }
    return span | ({"startedAt": timed["startedAt"]} if "startedAt" in timed else {})


def _span_id(run_id: str, node_id: str) -> str:
    return hashlib.sha256(f"{run_id}:{node_id}".encode()).hexdigest()[:16]

"""Comparison of two runs: values, nodes, durations, costs and the first difference.

Events are compared per node. A different order of parallel branches is not a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Final
from urllib.parse import parse_qsl, urlencode

import anyio.to_thread

from wopr.console.formatting import pretty
from wopr.console.page import Page, PageRequest
from wopr.console.runs.log import Entry
from wopr.console.runs.timeline import NodeSpans
from wopr.console.runs.view import RunPageView, load_run_view
from wopr.http.response import Response
from wopr.http.routes.runs import MAX_ID_LENGTH
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, json_equal, list_of, object_of
from wopr.protocol.errors import NotFound, Refused
from wopr.protocol.runs import NodeView, RunSnapshot
from wopr.runs.forks.compare import is_same_event
from wopr.store.port import RunFilter, RunRow

# The largest number of differences of one value on the page.
MAX_CHANGES: Final = 60
# Values that are nested deeper than this are compared as a whole.
_DEEPEST: Final = 12
_LONGEST: Final = 4000
# The number of common characters that are shown on each side of a difference.
_AROUND: Final = 160


@dataclass(frozen=True, slots=True)
class DiffText:
    """A value as text: the common beginning, the difference and the common end."""

    before: str
    changed: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """One member that differs; None on a side that does not have it."""

    path: str
    a: DiffText | None
    b: DiffText | None


def changes(a: Json, b: Json) -> list[Change]:
    """Return the first members in which two values differ, in the order of the members."""
    return list(islice(_walk("", a, b, 0), MAX_CHANGES))


def _walk(path: str, a: Json, b: Json, depth: int) -> Iterator[Change]:
    if not isinstance(a, Unset) and not isinstance(b, Unset) and json_equal(a, b):
        return
    if isinstance(a, dict) and isinstance(b, dict) and depth < _DEEPEST:
        left, right = object_of(a), object_of(b)
        for name in dict.fromkeys([*left, *right]):
            step = _member_path(path, name)
            yield from _walk(step, left.get(name, UNSET), right.get(name, UNSET), depth + 1)
    elif isinstance(a, list) and isinstance(b, list) and depth < _DEEPEST:
        yield from _walk_list(path, list_of(a), list_of(b), depth)
    else:
        yield _change(path, a, b)


def _walk_list(path: str, a: list[object], b: list[object], depth: int) -> Iterator[Change]:
    for place in range(max(len(a), len(b))):
        left = a[place] if place < len(a) else UNSET
        right = b[place] if place < len(b) else UNSET
        yield from _walk(f"{path}[{place}]", left, right, depth + 1)


def _member_path(path: str, name: str) -> str:
    if not name.isidentifier():
        return f"{path}[{pretty(name)}]"
    return f"{path}.{name}" if path else name


def _change(path: str, a: Json, b: Json) -> Change:
    if isinstance(a, Unset) or isinstance(b, Unset):
        return Change(path, _whole(a), _whole(b))
    left, right = _text(a), _text(b)
    most = min(len(left), len(right))
    start = _common_length(left, right, most)
    end = _common_length(left[::-1], right[::-1], most - start)
    return Change(path, _part(left, start, end), _part(right, start, end))


def _common_length(left: str, right: str, most: int) -> int:
    """Return the length of the common beginning of two texts, in whole words."""
    length = next((place for place in range(most) if left[place] != right[place]), most)
    while length and left[length - 1].isalnum() and _continues(length, left, right):
        length -= 1
    return length


def _continues(place: int, *texts: str) -> bool:
    """Return whether this position is within a word in one of the texts."""
    return any(text[place : place + 1].isalnum() for text in texts)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else pretty(value)


def _whole(value: Json) -> DiffText | None:
    return None if isinstance(value, Unset) else DiffText("", _cut(_text(value)), "")


def _part(text: str, start: int, end: int) -> DiffText:
    before, after = text[:start], text[len(text) - end :]
    if len(before) > _AROUND:
        before = "…" + before[-_AROUND:]
    if len(after) > _AROUND:
        after = after[:_AROUND] + "…"
    return DiffText(before, _cut(text[start : len(text) - end]), after)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


# The values of a run, by their title on the page.
_VALUES: Final = {
    "Inputs": "inputs",
    "Outputs": "outputs",
    "Variables": "variables",
    "Channels": "channels",
    "Configurable": "configurable",
}
# The node id for events that belong to no node.
RUN: Final = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """The sum of tokens and costs of model calls."""

    tokens: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """The result of a node in one run."""

    status: str
    attempts: int
    took: int | None
    # The width of the bar for its duration, in per cent of the longest duration.
    width: float
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first pair of events of a node that differ. One of them may be missing."""

    node_id: str
    a: Entry | None
    b: Entry | None
    changes: Sequence[Change]

    @property
    def place(self) -> int:
        """The lower sequence of the two events."""
        return min(entry.sequence for entry in (self.a, self.b) if entry is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """A node of one or both runs."""

    node_id: str
    name: str
    a: NodeResult | None
    b: NodeResult | None
    divergence: Divergence | None
    outputs: Sequence[Change]

    @property
    def extra_time(self) -> int | None:
        """The duration in the second run minus the first; None unless both runs executed it."""
        if self.a is None or self.b is None or self.a.took is None or self.b.took is None:
            return None
        return self.b.took - self.a.took


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side."""

    a: RunPageView
    b: RunPageView
    lines: Sequence[NodeLine]
    first: Divergence | None
    values: Mapping[str, Sequence[Change]]
    costs: tuple[Cost, Cost]

    @property
    def first_node(self) -> str:
        """The node with the first difference. Events of the runs themselves may differ earlier."""
        divergences = [line.divergence for line in self.lines if line.divergence is not None]
        return min(divergences, key=lambda each: each.place).node_id if divergences else ""


def compare_views(a: RunPageView, b: RunPageView) -> Comparison:
    """Compare two runs."""
    events = _by_node(a.log.entries), _by_node(b.log.entries)
    order = _merge_node_order(list(events[0]), list(events[1]))
    divergences = {
        node_id: divergence
        for node_id in [RUN, *order]
        if (divergence := _divergence(node_id, events[0], events[1])) is not None
    }
    costs = _costs(a.log.entries), _costs(b.log.entries)
    longest = max((_took(s, v) or 0 for v in (a, b) for s in v.nodes.values()), default=0)
    return Comparison(
        a=a,
        b=b,
        lines=[
            NodeLine(
                node_id=node_id,
                name=_name(a, node_id) or _name(b, node_id) or node_id,
                a=_node_result(a, node_id, costs[0], longest),
                b=_node_result(b, node_id, costs[1], longest),
                divergence=divergences.get(node_id),
                outputs=_output_changes(a, b, node_id),
            )
            for node_id in order
        ],
        first=min(divergences.values(), key=lambda each: each.place, default=None),
        values=_values(a.snapshot, b.snapshot),
        costs=(_sum(costs[0].values()), _sum(costs[1].values())),
    )


def _by_node(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.node_id, []).append(entry)
    return found


def _merge_node_order(a: list[str], b: list[str]) -> list[str]:
    """Merge the nodes in the order of the first run.

    A node of only the second run keeps its position.
    """
    merged, place = list(a), 0
    for node_id in b:
        if node_id in merged:
            place = merged.index(node_id) + 1
        else:
            merged.insert(place, node_id)
            place += 1
    return [node_id for node_id in merged if node_id != RUN]


def _divergence(
    node_id: str, a: Mapping[str, Sequence[Entry]], b: Mapping[str, Sequence[Entry]]
) -> Divergence | None:
    for left, right in zip_longest(a.get(node_id, ()), b.get(node_id, ())):
        if left is None or right is None:
            return Divergence(node_id=node_id, a=left, b=right, changes=())
        if not is_same_event(left.event, right.event):
            is_alike = left.event.type == right.event.type
            changed = changes(left.event.payload, right.event.payload) if is_alike else ()
            return Divergence(node_id=node_id, a=left, b=right, changes=changed)
    return None


def _name(view: RunPageView, node_id: str) -> str:
    node = view.compiled.graph.nodes.get(node_id)
    return "" if node is None else node.name


def _output_changes(a: RunPageView, b: RunPageView, node_id: str) -> Sequence[Change]:
    """Return the differences of a node's outputs, if both runs executed the node."""
    if node_id not in a.nodes or node_id not in b.nodes:
        return ()
    return changes(_outputs(a, node_id), _outputs(b, node_id))


def _node_result(
    view: RunPageView, node_id: str, costs: Mapping[str, Cost], longest: int
) -> NodeResult | None:
    spans = view.nodes.get(node_id)
    if spans is None:
        return None
    state = _state(view.snapshot, node_id)
    took = _took(spans, view)
    return NodeResult(
        status=state.status,
        attempts=len(spans.spans),
        took=took,
        width=100 * (took or 0) / max(longest, 1),
        cost=costs.get(node_id, Cost()),
    )


def _took(spans: NodeSpans, view: RunPageView) -> int | None:
    """Return how long a node was running or waiting; None if it never started."""
    if not spans.spans:
        return None
    now = view.row.ended_at or view.now
    return sum((now if span.end is None else span.end) - span.start for span in spans.spans)


def _state(snapshot: RunSnapshot, node_id: str) -> NodeView:
    states = {} if isinstance(snapshot.node_states, Unset) else snapshot.node_states
    return states.get(node_id, NodeView(status="pending"))


def _outputs(view: RunPageView, node_id: str) -> JsonObject:
    outputs = _state(view.snapshot, node_id).outputs
    return {} if isinstance(outputs, Unset) else outputs


def _costs(entries: Iterable[Entry]) -> dict[str, Cost]:
    """Return the cost of the model calls of each node."""
    found: dict[str, Cost] = {}
    for entry in entries:
        if entry.event.type == "provider.usage":
            past = found.get(entry.node_id, Cost())
            found[entry.node_id] = _sum([past, _cost(entry.payload)])
    return found


def _cost(payload: JsonObject) -> Cost:
    tokens = (payload.get("inputTokens"), payload.get("outputTokens"))
    usd: Json = payload.get("costEstimateUsd")
    return Cost(
        tokens=sum(each for each in tokens if isinstance(each, int)),
        usd=float(usd) if isinstance(usd, int | float) else 0.0,
    )


def _sum(costs: Iterable[Cost]) -> Cost:
    every = list(costs)
    return Cost(sum(each.tokens for each in every), sum(each.usd for each in every))


def _values(a: RunSnapshot, b: RunSnapshot) -> dict[str, Sequence[Change]]:
    found = {title: changes(_member(a, name), _member(b, name)) for title, name in _VALUES.items()}
    return {title: changed for title, changed in found.items() if changed}


def _member(snapshot: RunSnapshot, name: str) -> Json:
    value: Json = getattr(snapshot, name)
    return {} if isinstance(value, Unset) else value


# Runs of the same workflow that the page offers.
_MAX_CANDIDATES: Final = 6
_FORKS: Final = 20


@dataclass(frozen=True, slots=True)
class Candidates:
    """Runs that a run can be compared with, and their relation to it."""

    title: str
    rows: Sequence[RunRow]


async def compare(request: PageRequest) -> Response:
    """Show how two runs differ. If the query names only one run or none, ask for the others."""
    _read_selection(request)
    a, b = request.query.get("a"), request.query.get("b")
    if a is None or b is None:
        return await _pick(request, a or b)
    if a == b:
        raise Refused("Select two different runs.", field="b")
    if max(len(a), len(b)) > MAX_ID_LENGTH:
        raise NotFound("This run does not exist.")
    async with request.heavy_read_slot():
        views = await load_run_view(request, a), await load_run_view(request, b)
        found = await anyio.to_thread.run_sync(compare_views, *views)
        swapped = urlencode({"a": b, "b": a})
        return await request.large_page("compare.html", pair=found, swapped=swapped)


def _read_selection(request: PageRequest) -> None:
    """Read the selection in the list of runs: two fields with the same name.

    The list is newest first; the older run becomes `a`.
    """
    raw = bytes(request.http.scope["query_string"]).decode("latin-1")
    chosen = [value for name, value in parse_qsl(raw) if name == "run"]
    if not chosen:
        return
    if len(chosen) != 2:
        raise Refused(f"Select two runs to compare, not {len(chosen)}.", field="run")
    request.query.pop("run", None)
    request.query.update(a=chosen[1], b=chosen[0])


async def _pick(request: PageRequest, name: str | None) -> Response:
    """Ask for the run to compare with, and offer related runs."""
    if name is None:
        return await request.page("compare_pick.html", run=None, groups=())
    row = await request.host.run_reader.row(request.tenant, name[:MAX_ID_LENGTH])
    return await request.page("compare_pick.html", run=row, groups=await _candidates(request, row))


async def _candidates(request: PageRequest, row: RunRow) -> list[Candidates]:
    store, tenant = request.host.store, request.tenant
    source = None if row.source_run_id is None else await store.run(tenant, row.source_run_id)
    forks = await store.runs(tenant, RunFilter(source_run_id=row.run_id), None, _FORKS)
    where = RunFilter(workflow_id=row.workflow_id)
    earlier = await store.runs(tenant, where, (row.created_at, row.run_id), _MAX_CANDIDATES)
    newest = await store.runs(tenant, where, None, _MAX_CANDIDATES)
    groups = (
        Candidates("Source of this fork", () if source is None else (source,)),
        Candidates("Forks of this run", forks.runs),
        Candidates("Earlier runs of this workflow", earlier.runs),
        Candidates("Later runs of this workflow", [r for r in newest.runs if _is_later(r, row)]),
    )
    return [group for group in groups if group.rows]


def _is_later(other: RunRow, row: RunRow) -> bool:
    return (other.created_at, other.run_id) > (row.created_at, row.run_id)


PAGES: Final = (Page(name="compare", path="/compare", get=compare, scope="runs:read"),)

"""Two runs node by node: what each made of it, how long it took, what it cost, where they part.

Events are compared within their node. Branches that run at the same time may end in another order
in either run, and that alone is no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from wopr.console.run_log import Entry
from wopr.console.run_view import RunView
from wopr.console.spans import NodeSpans
from wopr.console.value_diff import Change, changes
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.runs import NodeView, RunSnapshot
from wopr.runtime.comparing import is_same_event

# What a run has as a whole, by the name that the page gives it.
_VALUES: Final = {
    "Inputs": "inputs",
    "Outputs": "outputs",
    "Variables": "variables",
    "Channels": "channels",
    "Configurable": "configurable",
}
# The events that belong to no node.
RUN: Final = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What model calls came to."""

    tokens: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one run made of a node."""

    status: str
    attempts: int
    took: int | None
    # The bar of its time, in per cent of the longest of all.
    width: float
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first two events of a node that say different things; one of them may not be there."""

    node_id: str
    a: Entry | None
    b: Entry | None
    changes: Sequence[Change]

    @property
    def place(self) -> int:
        """How far into the logs it is."""
        return min(entry.sequence for entry in (self.a, self.b) if entry is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """A node of either run."""

    node_id: str
    name: str
    a: Share | None
    b: Share | None
    parting: Parting | None
    outputs: Sequence[Change]

    @property
    def slower(self) -> int | None:
        """How much longer the second run took over it; None unless both did it."""
        if self.a is None or self.b is None or self.a.took is None or self.b.took is None:
            return None
        return self.b.took - self.a.took


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side."""

    a: RunView
    b: RunView
    lines: Sequence[NodeLine]
    first: Parting | None
    values: Mapping[str, Sequence[Change]]
    costs: tuple[Cost, Cost]

    @property
    def first_node(self) -> str:
        """The node at which they part first; the runs themselves may do so before."""
        partings = [line.parting for line in self.lines if line.parting is not None]
        return min(partings, key=lambda each: each.place).node_id if partings else ""


def compared(a: RunView, b: RunView) -> Comparison:
    """Lay two runs side by side."""
    events = _by_node(a.log.entries), _by_node(b.log.entries)
    order = _merged(list(events[0]), list(events[1]))
    partings = {
        node_id: parting
        for node_id in [RUN, *order]
        if (parting := _parting(node_id, events[0], events[1])) is not None
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
                a=_share(a, node_id, costs[0], longest),
                b=_share(b, node_id, costs[1], longest),
                parting=partings.get(node_id),
                outputs=_output_changes(a, b, node_id),
            )
            for node_id in order
        ],
        first=min(partings.values(), key=lambda each: each.place, default=None),
        values=_values(a.snapshot, b.snapshot),
        costs=(_total(costs[0]), _total(costs[1])),
    )


def _by_node(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.node_id, []).append(entry)
    return found


def _merged(a: list[str], b: list[str]) -> list[str]:
    """The nodes of both, in the order of the first; what only the second has follows its own."""
    merged, place = list(a), 0
    for node_id in b:
        if node_id in merged:
            place = merged.index(node_id) + 1
        else:
            merged.insert(place, node_id)
            place += 1
    return [node_id for node_id in merged if node_id != RUN]


def _parting(
    node_id: str, a: Mapping[str, Sequence[Entry]], b: Mapping[str, Sequence[Entry]]
) -> Parting | None:
    for left, right in zip_longest(a.get(node_id, ()), b.get(node_id, ())):
        if left is None or right is None:
            return Parting(node_id=node_id, a=left, b=right, changes=())
        if not is_same_event(left.event, right.event):
            is_alike = left.event.type == right.event.type
            changed = changes(left.event.payload, right.event.payload) if is_alike else ()
            return Parting(node_id=node_id, a=left, b=right, changes=changed)
    return None


def _name(view: RunView, node_id: str) -> str:
    node = view.compiled.graph.nodes.get(node_id)
    return "" if node is None else node.name


def _output_changes(a: RunView, b: RunView, node_id: str) -> Sequence[Change]:
    """How the outputs of a node differ, where both runs came to it."""
    if node_id not in a.nodes or node_id not in b.nodes:
        return ()
    return changes(_outputs(a, node_id), _outputs(b, node_id))


def _share(view: RunView, node_id: str, costs: Mapping[str, Cost], longest: int) -> Share | None:
    spans = view.nodes.get(node_id)
    if spans is None:
        return None
    state = _state(view.snapshot, node_id)
    took = _took(spans, view)
    return Share(
        status=state.status,
        attempts=len(spans.spans),
        took=took,
        width=100 * (took or 0) / max(longest, 1),
        cost=costs.get(node_id, Cost()),
    )


def _took(spans: NodeSpans, view: RunView) -> int | None:
    """How long a node was at work or waiting; None for one that never began."""
    if not spans.spans:
        return None
    now = view.row.ended_at or view.now
    return sum((now if span.end is None else span.end) - span.start for span in spans.spans)


def _state(snapshot: RunSnapshot, node_id: str) -> NodeView:
    states = {} if isinstance(snapshot.node_states, Unset) else snapshot.node_states
    return states.get(node_id, NodeView(status="pending"))


def _outputs(view: RunView, node_id: str) -> JsonObject:
    outputs = _state(view.snapshot, node_id).outputs
    return {} if isinstance(outputs, Unset) else outputs


def _costs(entries: Iterable[Entry]) -> dict[str, Cost]:
    """What the model calls of each node came to."""
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


def _total(costs: Mapping[str, Cost]) -> Cost:
    return _sum(costs.values())


def _sum(costs: Iterable[Cost]) -> Cost:
    every = list(costs)
    return Cost(sum(each.tokens for each in every), sum(each.usd for each in every))


def _values(a: RunSnapshot, b: RunSnapshot) -> dict[str, Sequence[Change]]:
    found = {title: changes(_member(a, name), _member(b, name)) for title, name in _VALUES.items()}
    return {title: changed for title, changed in found.items() if changed}


def _member(snapshot: RunSnapshot, name: str) -> Json:
    value: Json = getattr(snapshot, name)
    return {} if isinstance(value, Unset) else value

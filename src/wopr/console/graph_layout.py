"""A layered layout of a directed graph: every edge goes right, but for those that close a loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Edge: TypeAlias = tuple[str, str]
# A node, or the place where an edge passes a layer on its way.
_Spot: TypeAlias = str | tuple[str, str, int]

# The layers that all edges of a graph pass together.
MOST_PLACES: Final = 3000
_SWEEPS: Final = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every node lies, in steps to the right and down; and the bends of each edge."""

    columns: Mapping[str, int]
    rows: Mapping[str, float]
    bends: Mapping[Edge, tuple[tuple[int, float], ...]]
    width: int
    height: float


def is_drawable(nodes: Sequence[str], forward: Sequence[Edge]) -> bool:
    """Tell whether the edges of a graph pass few enough layers for a drawing to be of use."""
    columns = _columns(nodes, forward)
    return sum(columns[target] - columns[source] for source, target in forward) <= MOST_PLACES


def layered(nodes: Sequence[str], forward: Sequence[Edge]) -> Layout:
    """Lay out a graph without cycles. Equal graphs get equal layouts."""
    columns = _columns(nodes, forward)
    layers, links = _with_bends(nodes, forward, columns)
    _order(layers, links)
    rows = _rows(layers, links)
    bends = {
        edge: tuple(
            (column, rows[edge[0], edge[1], column])
            for column in range(columns[edge[0]] + 1, columns[edge[1]])
        )
        for edge in forward
    }
    return Layout(
        columns=columns,
        rows={node: rows[node] for node in nodes},
        bends=bends,
        width=len(layers),
        height=max(rows.values(), default=0) + 1,
    )


def _columns(nodes: Sequence[str], forward: Sequence[Edge]) -> dict[str, int]:
    """The longest way from a beginning, so that each edge leads to the right."""
    columns = dict.fromkeys(nodes, 0)
    waiting = dict.fromkeys(nodes, 0)
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in forward:
        waiting[target] += 1
        targets[source].append(target)
    free = [node for node in nodes if not waiting[node]]
    for node in free:
        for target in targets[node]:
            columns[target] = max(columns[target], columns[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                free.append(target)
    return columns


def _with_bends(
    nodes: Sequence[str], forward: Sequence[Edge], columns: Mapping[str, int]
) -> tuple[list[list[_Spot]], list[tuple[_Spot, _Spot]]]:
    """The layers with a spot for every edge that passes them, and links between neighbours only."""
    layers: list[list[_Spot]] = [[] for _ in range(max(columns.values(), default=-1) + 1)]
    for node in nodes:
        layers[columns[node]].append(node)
    links: list[tuple[_Spot, _Spot]] = []
    for source, target in forward:
        before: _Spot = source
        for column in range(columns[source] + 1, columns[target]):
            spot: _Spot = (source, target, column)
            layers[column].append(spot)
            links.append((before, spot))
            before = spot
        links.append((before, target))
    return layers, links


def _order(layers: list[list[_Spot]], links: Sequence[tuple[_Spot, _Spot]]) -> None:
    """Put each spot near its neighbours, to and fro, so that few edges cross."""
    before = _neighbours((target, source) for source, target in links)
    after = _neighbours(links)
    places = {spot: place for layer in layers for place, spot in enumerate(layer)}
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        near = before if forth else after
        for layer in layers if forth else reversed(layers):
            wanted = {
                spot: _mean([places[n] for n in near.get(spot, ())], places[spot]) for spot in layer
            }
            layer.sort(key=lambda spot: wanted[spot])
            places.update((spot, place) for place, spot in enumerate(layer))


def _rows(
    layers: Sequence[Sequence[_Spot]], links: Sequence[tuple[_Spot, _Spot]]
) -> dict[_Spot, float]:
    """A height for each spot: at the middle of what leads to it, but never on top of another."""
    before = _neighbours((target, source) for source, target in links)
    after = _neighbours(links)
    rows: dict[_Spot, float] = {}
    for layer in layers:
        wanted = [_mean([rows[n] for n in before.get(s, ())], i) for i, s in enumerate(layer)]
        rows.update(zip(layer, _apart(wanted), strict=True))
    for layer in reversed(layers[:-1] if layers else []):
        wanted = [_mean([rows[n] for n in after.get(spot, ())], rows[spot]) for spot in layer]
        rows.update(zip(layer, _apart(wanted), strict=True))
    top = min(rows.values(), default=0)
    return {spot: row - top for spot, row in rows.items()}


def _apart(wanted: Sequence[float]) -> list[float]:
    """Heights in the same order, each at least a step below the one before, shifted as little."""
    placed: list[float] = []
    for want in wanted:
        placed.append(max(want, placed[-1] + 1) if placed else want)
    if not placed:
        return placed
    shift = sum(wanted) / len(wanted) - sum(placed) / len(placed)
    return [place + shift for place in placed]


def _neighbours(links: Iterable[tuple[_Spot, _Spot]]) -> dict[_Spot, list[_Spot]]:
    found: dict[_Spot, list[_Spot]] = {}
    for source, target in links:
        found.setdefault(source, []).append(target)
    return found


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise

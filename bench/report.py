"""The figures as a table for people."""

from __future__ import annotations

from collections.abc import Iterable

from bench.figures import Figure

_HEADS = ("", "value", "", "x floor", "CPU us", "x floor", "load us", "p50 ms", "p99 ms", "aim")
_LEFT = frozenset({0, 2, 9})


def table(figures: Iterable[Figure]) -> str:
    """Format each figure as one line, with a blank line between measures."""
    rows: list[tuple[str, ...]] = [_HEADS]
    measure = ""
    for figure in figures:
        if figure.measure != measure:
            measure = figure.measure
            rows += [("",) * len(_HEADS), (measure.upper(), *("",) * (len(_HEADS) - 1))]
        rows.append(_row(figure))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = (
        cell.ljust(width) if column in _LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _row(figure: Figure) -> tuple[str, ...]:
    verdict = "" if figure.met is None else "met: " if figure.met else "NOT MET: "
    return (
        f"  {figure.name}",
        _number(figure.value),
        figure.unit,
        _ratio(figure.value, figure.floor),
        _number(figure.cpu_us),
        _ratio(figure.cpu_us, figure.floor_cpu_us),
        _number(figure.load_us),
        _number(figure.p50_ms),
        _number(figure.p99_ms),
        verdict + figure.aim,
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def _ratio(value: float | None, floor: float | None) -> str:
    return "" if value is None or not floor else f"{value / floor:.2f}"

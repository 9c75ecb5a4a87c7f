"""`python -m bench`: measure everything in one run and print it with its floors and aims."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]  # the package carries no types

from bench.figures import FULL, QUICK, Figure
from bench.floors import floor_figures, measure_floors
from bench.measures import MEASURES
from bench.report import table


def main() -> None:
    """Measure and print. The exit code is always 0: no figure is a gate."""
    arguments = _arguments()
    size = QUICK if arguments.quick else FULL
    began, busy = time.perf_counter(), _other_cpu_seconds()
    _log_progress("floors")
    floors = measure_floors(size)
    figures = floor_figures(floors)
    for name in arguments.only or MEASURES:
        _log_progress(name)
        figures += MEASURES[name](size, floors)
    seconds = time.perf_counter() - began
    others = (_other_cpu_seconds() - busy) / seconds
    print(table(figures))
    print(
        f"\n{seconds:.0f} s on {os.cpu_count()} cores. Ratios are to the floors of this same run."
    )
    print(f"Other processes used {max(others, 0):.1f} cores. More load makes figures less exact.")
    if arguments.json is not None:
        _write(arguments.json, figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="take under a minute, with less exact figures"
    )
    parser.add_argument(
        "--only", action="append", choices=list(MEASURES), help="one measure; repeatable"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to this file"
    )
    return parser.parse_args()


def _other_cpu_seconds() -> float:
    """Return the CPU seconds of all processes except this benchmark and its children."""
    machine = psutil.cpu_times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    own = os.times()
    return float(
        sum(machine[:8]) - idle - (own.user + own.system + own.children_user + own.children_system)
    )


def _log_progress(name: str) -> None:
    print(f"measuring {name} ...", file=sys.stderr, flush=True)


def _write(path: Path, figures: list[Figure]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")


if __name__ == "__main__":
    main()

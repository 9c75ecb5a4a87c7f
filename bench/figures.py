"""The figures of a benchmark, with their floors and aims."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. Ratios to the floor hold on another machine; rates do not."""

    measure: str
    name: str
    value: float
    unit: str
    # CPU per operation of the served process, and of the process that creates the load.
    cpu_us: float | None = None
    load_us: float | None = None
    floor: float | None = None
    floor_cpu_us: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    aim: str = ""
    met: bool | None = None


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The lower bound of the cost of an operation: highest rate per second, lowest CPU."""

    rate: float
    cpu_us: float
    load_us: float | None = None


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """The floors of one benchmark run, by number of clients."""

    echo: dict[int, Floor]
    append: dict[int, Floor]
    fan_out_ms: float
    events: list[bytes]

    def run(self, clients: int) -> Floor:
        """Return the floor of a run: one bare request and one bare append of its events."""
        echo, append = self.echo[clients], self.append[clients]
        return Floor(rate=min(echo.rate, append.rate), cpu_us=echo.cpu_us + append.cpu_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of work: enough for a trend (`QUICK`) or for exact figures (`FULL`).

    A host is filled up to each number in `stored_runs` and compared there with a new host. The fleet
    is read with each number of `fleet_runs`, and gets `fleet_pushes` of 1 MiB each.
    """

    seconds: float
    fan_outs: int
    stored_runs: tuple[int, ...]
    window_runs: int
    windows: int
    memory_step: int
    fleet_runs: tuple[int, ...]
    fleet_pushes: int
    exported_runs: int
    annotations: int


QUICK = Size(
    seconds=1.5,
    fan_outs=10,
    stored_runs=(10_000,),
    window_runs=500,
    windows=3,
    memory_step=2_000,
    fleet_runs=(10_000, 100_000),
    fleet_pushes=12,
    exported_runs=10_000,
    annotations=50_000,
)
FULL = Size(
    seconds=8.0,
    fan_outs=40,
    stored_runs=(10_000, 100_000),
    window_runs=1_500,
    windows=7,
    memory_step=10_000,
    fleet_runs=(10_000, 1_000_000),
    fleet_pushes=80,
    exported_runs=100_000,
    annotations=1_000_000,
)
CLIENTS = (1, 16, 64)


def format_clients(count: int) -> str:
    """Return `1 client` or, for example, `16 clients`."""
    return "1 client" if count == 1 else f"{count} clients"

"""A rate and its cost: a load job, and the CPU time of the server before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bench.figures import Floor
from bench.load import Requests, Responses, run_job


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of a job, and the CPU time of the server for it."""

    responses: Responses
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Responses per second."""
        return self.responses.count / self.responses.seconds

    @property
    def cpu_us(self) -> float:
        """The server's CPU per response."""
        return 1e6 * self.cpu_seconds / self.responses.count

    @property
    def load_us(self) -> float:
        """The load process's CPU per response."""
        return 1e6 * self.responses.cpu_seconds / self.responses.count

    def floor(self) -> Floor:
        """Return this rate as a floor for other figures."""
        return Floor(rate=self.per_second, cpu_us=self.cpu_us, load_us=self.load_us)


class Measurable(Protocol):
    """One or more processes whose CPU time is measured."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far."""
        ...


def measure_rate(served: Measurable, job: Requests) -> Rate:
    """Run a job and measure the server's CPU. Raises an error if a request is refused."""
    before = served.cpu_seconds()
    responses = run_job(job)
    if responses.refused:
        raise RuntimeError(f"{responses.refused} of {responses.count} requests were refused")
    return Rate(responses, served.cpu_seconds() - before)

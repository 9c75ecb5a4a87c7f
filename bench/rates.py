"""A rate and what it cost: a load job around two looks at the server's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bench.figures import Floor
from bench.load import Answers, Requests, run_job


@dataclass(frozen=True, slots=True)
class Rate:
    """How a job went, and the CPU that the server spent on it."""

    answers: Answers
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return self.answers.answered / self.answers.seconds

    @property
    def cpu_us(self) -> float:
        """The server's CPU per answer."""
        return 1e6 * self.cpu_seconds / self.answers.answered

    @property
    def load_us(self) -> float:
        """The load process's own CPU per answer."""
        return 1e6 * self.answers.cpu_seconds / self.answers.answered

    def floor(self) -> Floor:
        """This rate as a floor for others."""
        return Floor(rate=self.per_second, cpu_us=self.cpu_us, load_us=self.load_us)


class Measurable(Protocol):
    """One process or several, of which one wants to know what they cost."""

    def cpu_seconds(self) -> float:
        """What was spent so far."""
        ...


def measured(served: Measurable, job: Requests) -> Rate:
    """Run a job and take the server's CPU around it. An answer that is no success is a fault."""
    before = served.cpu_seconds()
    answers = run_job(job)
    if answers.refused:
        raise RuntimeError(f"{answers.refused} of {answers.answered} requests were refused")
    return Rate(answers, served.cpu_seconds() - before)

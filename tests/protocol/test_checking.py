"""The faults of a document: how many are listed, and how long they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from wopr.protocol.json_schema.validation import Fault, first_faults


def test_faults_beyond_the_first_hundred_are_not_searched() -> None:
    found: list[int] = []

    def faults() -> Iterator[Fault]:
        for index in count():
            found.append(index)
            yield Fault(path=f"nodes.{index}", message="is wrong")

    listed = first_faults(faults())

    assert len(found) == 101
    assert [fault.path for fault in listed[:100]] == [f"nodes.{index}" for index in range(100)]
    assert listed[100].message == "there are more faults; only the first 100 are listed"


def test_long_paths_and_messages_of_faults_are_cut() -> None:
    (fault,) = first_faults([Fault(path="p" * 10_000, message="m" * 10_000)])

    assert fault == Fault(path="p" * 500 + "…", message="m" * 2000 + "…")

"""Reads of several steps that every adapter takes alike: what is asked next, whoever asks it.

Such a read is a generator. It yields questions, is sent their rows, and returns what it made of
them; the adapter only carries questions and rows. Questions are spelled with `?` for a parameter.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from wopr.store.sql.dialect import Parameter, Row

T = TypeVar("T")


class Question(NamedTuple):
    """A statement that only reads, and the parameters of each time that it is asked."""

    sql: str
    keys: Sequence[tuple[Parameter, ...]]


# For each question, and in it for each of its keys, the rows.
Answers: TypeAlias = list[list[list[Row]]]
Asking: TypeAlias = Generator[Sequence[Question], Answers, T]

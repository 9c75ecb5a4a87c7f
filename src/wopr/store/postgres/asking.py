"""Reads of several steps, each of which is one round trip, however much it asks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from wopr.store.postgres.database import Transaction
from wopr.store.postgres.many import columns, unnested
from wopr.store.sql.asking import Answers, Asking, Question, T
from wopr.store.sql.dialect import Parameter, Row

_TYPES: dict[type, str] = {str: "text", int: "bigint", bytes: "bytea"}


async def answered(transaction: Transaction, asking: Asking[T]) -> T:
    """Answer every question of a read, and give back what it made of them."""
    try:
        questions = next(asking)
        while True:
            questions = asking.send(await _answers(transaction, questions))
    except StopIteration as end:
        result: T = end.value
        return result


async def _answers(transaction: Transaction, questions: Sequence[Question]) -> Answers:
    asked = [question for question in questions if question.keys]
    found = await transaction.answers(
        [(_statement(each.sql, _types(each.keys[0])), columns(each.keys)) for each in asked]
    )
    rows = iter(found)
    return [_by_key(next(rows), len(each.keys)) if each.keys else [] for each in questions]


def _by_key(rows: Sequence[Row], count: int) -> list[list[Row]]:
    found: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        number: int = row[0]
        found[number - 1].append(row[1:])
    return found


def _types(key: tuple[Parameter, ...]) -> tuple[str, ...]:
    return tuple(_TYPES[type(value)] for value in key)


@cache
def _statement(sql: str, types: tuple[str, ...]) -> str:
    """The same question for all keys at once, each row with its key's number before it."""
    names = [f"c{place}" for place in range(len(types))]
    asked = sql
    for name in names:
        asked = asked.replace("?", f"k.{name}", 1)
    return (
        f"SELECT k.n, q.* FROM {unnested(types)} WITH ORDINALITY AS k ({', '.join(names)}, n) "
        f"CROSS JOIN LATERAL ({asked}) AS q"
    )

"""Reads of several steps, asked on one connection."""

from __future__ import annotations

import sqlite3

from wopr.store.sql.asking import Asking, Question, T
from wopr.store.sql.dialect import Row


def answered(connection: sqlite3.Connection, asking: Asking[T]) -> T:
    """Answer every question of a read, and give back what it made of them."""
    try:
        questions = next(asking)
        while True:
            questions = asking.send([_rows(connection, question) for question in questions])
    except StopIteration as end:
        result: T = end.value
        return result


def _rows(connection: sqlite3.Connection, question: Question) -> list[list[Row]]:
    return [connection.execute(question.sql, key).fetchall() for key in question.keys]

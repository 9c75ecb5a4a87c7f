"""Many rows in one statement: a list for each column, which the database makes rows of again."""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.postgres.database import Value
from wopr.store.sql.dialect import Parameter


def columns(rows: Sequence[Sequence[Parameter | float]]) -> list[Value]:
    """Rows turned into columns, for `unnested`."""
    return [list(column) for column in zip(*rows, strict=True)]


def unnested(types: Sequence[str]) -> str:
    """The rows of columns of these types."""
    return f"unnest({', '.join(f'%s::{each}[]' for each in types)})"

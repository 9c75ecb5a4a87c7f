"""Rows of tenants' sealed credentials, read and written."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.store.port.secrets import SecretRow
from wopr.store.sql.dialect import Parameter, Row

SECRET_COLUMNS: Final = "name, sealed, audience, updated_at"

_audience = msgspec.json.Decoder(tuple[str, ...])


def secret_row(row: Row) -> SecretRow:
    """A row of `SECRET_COLUMNS`."""
    return SecretRow(
        name=row[0], sealed=row[1], audience=_audience.decode(row[2]), updated_at=row[3]
    )


def secret_values(row: SecretRow) -> tuple[Parameter, ...]:
    """The values of `SECRET_COLUMNS`."""
    return row.name, row.sealed, msgspec.json.encode(row.audience), row.updated_at

"""Notifications between processes: which run has grown, never what it holds.

They are sent in the transaction that they tell of, so that nobody hears of what is not there yet.
A listener that lost its connection says so, and who hears that reads on from the store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

import anyio
import msgspec
import psycopg
import structlog
from psycopg import AsyncConnection

from wopr.store.port.peers import Annotated, Changed, Grown, Kept, Listening, News, Owed, Woken
from wopr.store.postgres.address import Address
from wopr.store.postgres.database import Transaction

CHANNEL = "wopr"

_NOTIFY = "SELECT pg_notify('wopr', jsonb_build_array(%s::text, %s::text, %s::text)::text)"
_RECONNECT_SECONDS = 1.0

# After so long a silence the connection is asked whether it is still one.
_SILENCE_SECONDS = 15.0

log = structlog.get_logger("wopr.store")
_decoder = msgspec.json.Decoder(list[str | int])


async def notify_annotation(transaction: Transaction, run_id: str, annotation_id: str) -> None:
    """Tell every process of an annotation, once this transaction is committed."""
    await transaction.queue(_NOTIFY, (transaction.tenant, run_id, annotation_id))


async def listen(address: Address) -> AsyncGenerator[News, None]:
    """Hear of what any process writes; connects again by itself, and says so with `Listening`."""
    while True:
        try:
            async with await AsyncConnection.connect(
                address.conninfo, autocommit=True
            ) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                yield Listening()
                while True:
                    async for notification in connection.notifies(timeout=_SILENCE_SECONDS):
                        yield _news(notification.payload)
                    await connection.execute("SELECT 1")
        except psycopg.Error as error:
            log.warning("listening was cut off", error=error.sqlstate or type(error).__name__)
        await anyio.sleep(_RECONNECT_SECONDS)


def _news(payload: str) -> News:
    """What a payload means; the second word of four says of which kind it is.

    Whoever may log in may notify, and a newer process may say more: what is not understood is a
    reason to look at everything.
    """
    try:
        words = _decoder.decode(payload)
    except msgspec.MsgspecError:
        return Listening()
    match words:
        case [str(tenant), str(run_id), int(sequence)]:
            return Grown(tenant=tenant, run_id=run_id, sequence=sequence)
        case [str(tenant), str(run_id), str(annotation_id)]:
            return Annotated(tenant=tenant, run_id=run_id, annotation_id=annotation_id)
        case [str(tenant), "woken", str(run_id), str(process)]:
            return Woken(tenant=tenant, run_id=run_id, process=process)
        case [str(tenant), "changed", str(kept), str(name)]:
            return Changed(tenant=tenant, kept=cast(Kept, kept), name=name)
        case [str(tenant), "owed", str(webhook_id), _]:
            return Owed(tenant=tenant, webhook_id=webhook_id)
        case _:
            # A newer process speaks of what this one does not know: look at everything once more.
            return Listening()

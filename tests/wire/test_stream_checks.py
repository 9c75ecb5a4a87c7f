"""The credential check of open streams."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from wopr.http.limits import CHECKS_AT_ONCE, OpenStreams, StreamLimits
from wopr.protocol.errors import Unauthenticated, Unavailable
from wopr.security.api_keys import Principal

pytestmark = pytest.mark.anyio
SESSIONS = 900
DEADLINE_SECONDS = 60
CALLER = Principal(key_id="key", tenant="acme", role="admin", scopes=frozenset(), is_test=False)


def _limits() -> OpenStreams:
    return OpenStreams(StreamLimits(per_key=SESSIONS, per_tenant=SESSIONS, per_process=SESSIONS))


async def test_credentials_are_checked_several_at_a_time_and_each_once() -> None:
    limits, several = _limits(), anyio.Event()
    checked: list[int] = []
    at_once: list[int] = []
    most = 0

    async def check(number: int) -> None:
        nonlocal most
        checked.append(number)
        at_once.append(number)
        most = max(most, len(at_once))
        if len(at_once) == CHECKS_AT_ONCE:
            several.set()
        await several.wait()
        await anyio.lowlevel.checkpoint()
        at_once.remove(number)
        raise Unauthenticated("the session was signed out")

    with ExitStack() as stack:
        opened = [
            stack.enter_context(limits.open(CALLER, f"session {number}", partial(check, number)))
            for number in range(SESSIONS)
        ]
        with anyio.fail_after(DEADLINE_SECONDS):
            await limits.end_unauthorised()

        assert sorted(checked) == list(range(SESSIONS))
        assert most == CHECKS_AT_ONCE
        assert all(stream.scope.cancel_called for stream in opened)


async def test_an_unavailable_store_ends_no_stream() -> None:
    limits = _limits()
    checked: list[object] = []

    async def check() -> None:
        checked.append(None)
        raise Unavailable("the database does not answer")

    with ExitStack() as stack:
        opened = [
            stack.enter_context(limits.open(CALLER, f"session {number}", check))
            for number in range(SESSIONS)
        ]
        await limits.end_unauthorised()

        assert 1 <= len(checked) <= CHECKS_AT_ONCE
        assert not any(stream.scope.cancel_called for stream in opened)

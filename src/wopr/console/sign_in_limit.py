"""Bounds how often one address may fail to sign in."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from wopr.protocol.errors import RateLimited

MOST_FAILURES: Final = 10
WINDOW_SECONDS: Final = 60.0
_ADDRESSES_KEPT: Final = 10_000


class SignInLimit:
    """Ten failures in a minute, and an address has to wait for the minute to pass."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, address: str) -> None:
        """Refuse an address that failed too often, before its key is looked at."""
        since, count = self._failures.get(address, (0.0, 0))
        left = since + WINDOW_SECONDS - self._clock()
        if count >= MOST_FAILURES and left > 0:
            seconds = math.ceil(left)
            raise RateLimited(
                f"too many keys that nobody knows; try again in {seconds} s", retry_after=seconds
            )

    def failed(self, address: str) -> None:
        """Count a failure."""
        now = self._clock()
        since, count = self._failures.pop(address, (now, 0))
        if since + WINDOW_SECONDS <= now:
            since, count = now, 0
        self._failures[address] = (since, count + 1)
        if len(self._failures) > _ADDRESSES_KEPT:
            self._failures.popitem(last=False)

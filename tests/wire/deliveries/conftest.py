from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.client import Wire
from tests.support.host import ACME, ServedHost
from tests.support.webhook_receiver import Receiver, receiving
from tests.wire.conftest import Connect
from tests.wire.deliveries.subscribing import QUICK


@pytest.fixture(scope="module")
def quick_host(module_host: Callable[..., ServedHost]) -> ServedHost:
    """Start a host that may call this machine, with short delays."""
    return module_host("--conformance", **QUICK)


@pytest.fixture
def acme(quick_host: ServedHost, connect: Connect) -> Wire:
    return connect(ACME, quick_host)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running

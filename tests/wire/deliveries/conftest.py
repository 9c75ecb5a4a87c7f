from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wire.client import Wire
from tests.wire.conftest import Connect
from tests.wire.deliveries.subscribing import QUICK
from tests.wire.host import ACME, ServedHost, served
from tests.wire.receiver import Receiver, receiving


@pytest.fixture(scope="module")
def quick_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """A host that may dial this machine, and is not patient."""
    with served(tmp_path_factory.mktemp("quick"), "--conformance", **QUICK) as running:
        yield running


@pytest.fixture
def acme(quick_host: ServedHost, connect: Connect) -> Wire:
    return connect(ACME, quick_host)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running

from __future__ import annotations

from typing import cast

import pytest

from wopr.api.host import InboxFilters, RunFilters
from wopr.http.app import OPERATIONS
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("kind", "operation"), [(RunFilters, "listRuns"), (InboxFilters, "listInterrupts")]
)
def test_filters_match_those_of_the_protocol(kind: type[object], operation: str) -> None:
    [listing] = [each for each in OPERATIONS if each.name == operation]

    assert set(kind.__annotations__) == {parameter.name for parameter in listing.parameters}


async def test_an_unknown_filter_is_refused() -> None:
    wrong = cast("RunFilters", {"stauts": "failed"})

    async with memory_host() as host:
        with pytest.raises(TypeError, match="there is no filter 'stauts': did you mean 'status'"):
            await host.runs(**wrong)


async def test_a_list_can_be_limited() -> None:
    async with memory_host() as host:
        for name in ("Ada", "Grace"):
            await (await host.start("hello", {"name": name})).result()

        assert len(await host.runs(workflowId="hello", limit=1)) == 1

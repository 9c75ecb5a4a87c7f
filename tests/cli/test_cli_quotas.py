from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Wopr


@pytest.mark.parametrize("limit", [2**53, 2**63])
def test_a_quota_above_the_maximum_is_wrong_usage(local: Wopr, limit: int) -> None:
    result = local("quotas", "set", "activeRuns", str(limit))

    assert result.exit_code == 2
    assert "9007199254740991" in result.stderr
    assert "activeRuns" not in local("quotas", "show").stdout

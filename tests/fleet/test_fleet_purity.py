"""What must give the same bytes everywhere knows no clock, no chance and no disk."""

from __future__ import annotations

import pytest

from tests.test_layers import IMPURE_MODULES, imports_of

PURE = (
    "agent_check align bridge bridge_acts bridge_agent bridge_ends bridge_facts bridge_feedback "
    "bridge_ids checker ci_check drafts events findings instants lifecycle lines observe "
    "observed_agent otlp_acts otlp_facts otlp_lines otlp_times otlp_tree otlp_wire reading schemas "
    "statistics summary"
).split()


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_no_clock_chance_network_or_disk(module: str) -> None:
    found = [each for each in imports_of("fleet") if each.file == f"fleet/{module}.py"]

    assert found
    assert [each for each in found if each.module.partition(".")[0] in IMPURE_MODULES] == []
    assert [each for each in found if each.module.startswith("wopr.store")] == []

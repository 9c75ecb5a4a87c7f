"""Modules that must produce the same bytes everywhere use no clock, no randomness and no disk."""

from __future__ import annotations

import pytest

from tests.test_layers import IMPURE_MODULES, imports_of

WITHOUT_STORE = (
    "bridge/agent bridge/facts bridge/handlers bridge/projection checker events lifecycle lines "
    "observed/events otlp/lines otlp/spans otlp/tree summary timestamps"
).split()
# These compute the rows that the store keeps.
WITH_ROWS = "new_lines run_fold statistics".split()


@pytest.mark.parametrize("module", [*WITHOUT_STORE, *WITH_ROWS])
def test_a_pure_module_imports_no_clock_randomness_network_or_disk(module: str) -> None:
    found = [each for each in imports_of("kahn") if each.file == f"kahn/{module}.py"]

    assert found
    assert [each for each in found if each.module.partition(".")[0] in IMPURE_MODULES] == []


@pytest.mark.parametrize("module", WITHOUT_STORE)
def test_the_line_modules_do_not_import_the_store(module: str) -> None:
    found = [each for each in imports_of("kahn") if each.file == f"kahn/{module}.py"]

    assert [each for each in found if each.module.startswith("wopr.store")] == []

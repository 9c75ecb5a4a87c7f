"""A run with large values stored as artifacts has the same results as one with inline values."""

from __future__ import annotations

import tempfile
from functools import reduce
from pathlib import Path

import anyio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fault.forking import forked, log_content
from tests.fault.test_fork_properties import Ticking, folded, results_of, run_to_its_end
from tests.support.definitions import fresh, from_variable, node, workflow
from tests.support.in_process import TENANT, bench, numbered
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.references import reference_to
from wopr.runs.large_values import LargeValues

FORGED: Json = {"$artifact": reference_to(b'"forged"')}
DEEP: Json = reduce(lambda inner, _: {"$artifact": [inner]}, range(80), FORGED)
NAMES = st.sampled_from(["a", "b", "artifact", "$artifact", "$$artifact", "$$$artifact"])
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.integers(0, 99), st.text("ab$ ", max_size=60), st.just(FORGED)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


def expression(text: str) -> JsonObject:
    return {"type": "expression", "expression": text}


def passing(values: list[Json]) -> JsonObject:
    """Return a workflow that passes values through variables, channels, a person and nodes."""
    nodes = [
        part
        for number, value in enumerate(values)
        for part in (
            node(f"set{number}", "core.setVariable", config={"name": "x", "value": value}),
            node(
                f"write{number}",
                "core.channelWrite",
                config={"channelName": "c", "reducer": "append"},
                inputs={"value": from_variable("x")},
            ),
            node(
                f"merge{number}",
                "core.channelWrite",
                config={"channelName": "m", "reducer": "merge", "value": {f"k{number % 2}": value}},
            ),
            node(f"copy{number}", "core.identity", inputs={"x": from_variable("x")}),
        )
    ]
    ask = node("ask", "core.approvalGate", config={"title": "May it?", "actions": ["accept"]})
    last = node(
        "last",
        "core.identity",
        inputs={"c": expression("channels.c"), "m": expression("channels.m")},
    )
    return workflow([*nodes, ask, last], id=fresh("conformance"))


async def ends(definition: JsonObject, folder: Path, inline: int) -> JsonObject:
    """Return the results of a run and its forks, which must be equal, and their display."""
    async with bench(folder, new_id=numbered(), inline_value_bytes=inline) as ours:
        await ours.host.library.register(TENANT, definition)
        run_id = await run_to_its_end(ours, definition["id"])
        end = results_of(await folded(ours, run_id))
        assert end["status"] == "completed", end["error"]
        original = await log_content(ours, run_id)
        for start in (0, len(original) // 2, len(original)):
            replay = await forked(ours, run_id, from_seq=start)
            assert await log_content(ours, replay) == original, start
            assert results_of(await folded(ours, replay)) == end
        row = await ours.row(run_id)
        shown = (await ours.host.run_reader.fold(TENANT, row)).outputs
        store = ours.host.store
        assert await LargeValues().resolve(store, TENANT, run_id, shown) == end["outputs"]
        return end


async def check(definition: JsonObject, one: Path, two: Path) -> None:
    assert await ends(definition, one, 40) == await ends(definition, two, 0)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(VALUES, min_size=1, max_size=3))
@example([FORGED, {"$$artifact": [FORGED]}, "a" * 100])
@example([DEEP])
def test_a_run_has_the_same_result_with_and_without_stored_large_values(values: list[Json]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        anyio.run(check, passing(values), Path(one), Path(two))


async def check_forks(folder: Path) -> None:
    clock = Ticking()
    async with bench(folder, clock=clock, new_id=numbered(), inline_value_bytes=40) as ours:
        definition = passing(["a" * 100])
        await ours.host.library.register(TENANT, definition)
        source = await run_to_its_end(ours, definition["id"])
        end = results_of(await folded(ours, source))
        length = len(await log_content(ours, source))
        replay = await forked(ours, source)
        branch = await forked(ours, source, "branch", length - 3)
        row = await ours.row(source)
        await ours.host.store.delete_expired_runs((row.ended_at or 0) + 1, 1)
        assert await ours.host.store.run(TENANT, source) is None

        assert results_of(await folded(ours, replay)) == end
        assert (await folded(ours, branch)).outputs == end["outputs"]
        assert results_of(await folded(ours, await forked(ours, replay))) == end


def test_forks_keep_the_values_when_retention_deletes_their_source(tmp_path: Path) -> None:
    anyio.run(check_forks, tmp_path)

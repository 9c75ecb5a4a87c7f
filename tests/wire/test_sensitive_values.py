from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, edge, from_variable, node, variable, workflow
from tests.support.host import ACME, ServedHost
from tests.support.stored_files import stored
from tests.support.surfaces import CANARIES, leaks, surfaces
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

PIN = "the-orchid-blooms-at-midnight"
OTHER = "a-second-thing-to-keep-quiet"


def _marked(**fields: Json) -> JsonObject:
    """Return a workflow with sensitive values in every way that a definition can mark."""
    # By their length: a definition that contained the values themselves would reveal them.
    right = f"size(variables.pin) == {len(PIN)} && size(variables.other) == {len(OTHER)}"
    return workflow(
        [
            node(
                "hand-on",
                "core.identity",
                inputs={"pin": from_variable("pin")},
                outputSensitivity={"pin": True},
            ),
            node(
                "set",
                "core.setVariable",
                config={"name": "other"},
                inputs={"value": from_variable("second")},
                outputSensitivity={"value": True},
            ),
            node(
                "write",
                "core.channelWrite",
                config={"channelName": "vault", "reducer": "append", "value": "x"},
            ),
            delay("wait", 1200),
            node(
                "check",
                "core.conditional",
                config={"expression": f"{right} && nodes['hand-on'].pin == variables.pin"},
            ),
            node("right"),
            node("wrong", "core.fail"),
        ],
        edges=[
            edge("hand-on", "set"),
            edge("set", "write"),
            edge("write", "wait"),
            edge("wait", "check"),
            edge(
                "check",
                "right",
                condition={"type": "expression", "expression": "nodes.check.result"},
            ),
            edge(
                "check",
                "wrong",
                condition={"type": "expression", "expression": "!nodes.check.result"},
            ),
        ],
        variables=[
            variable("pin", sensitive=True, required=True),
            variable("second", sensitive=True, required=True),
            variable("other", sensitive=True),
        ],
        channels={"vault": {"reducer": "append", "sensitive": True}},
        **fields,
    )


INPUTS = {"pin": PIN, "second": OTHER}


@pytest.mark.parametrize("mode", ["mask", "omit", "hash"])
def test_sensitive_values_are_masked_for_readers_and_plain_for_nodes(acme: Wire, mode: str) -> None:
    definition = _marked(
        metadata={"complianceClass": "pii", "complianceConfig": {"maskingMode": mode}}
    )

    run_id = acme.create(acme.register(definition), INPUTS)
    meanwhile = _so_far(acme, run_id)
    found = acme.finished(run_id)

    assert found["nodeStates"]["right"]["status"] == "completed"
    assert not leaks(meanwhile + surfaces(acme, run_id), PIN, OTHER)


def _so_far(wire: Wire, run_id: str) -> str:
    """Return everything that a reader can get of an active run."""
    path = f"/v1/runs/{run_id}"
    json_form = {"Accept": "application/json"}
    return wire.get(path).text + wire.get(f"{path}/events", headers=json_form).text


def test_each_masking_mode_writes_what_the_contract_says(acme: Wire) -> None:
    seen: dict[str, JsonObject] = {}
    for mode in ("mask", "omit", "hash"):
        config = {"complianceConfig": {"maskingMode": mode}}
        definition = workflow(
            [node("a")],
            variables=[variable("pin", sensitive=True), variable("open", "number")],
            metadata=config,
        )
        seen[mode] = acme.run(acme.register(definition), {"pin": PIN, "open": 1})

    assert seen["mask"]["inputs"] == {"pin": "[REDACTED]", "open": 1}
    assert seen["omit"]["inputs"] == {"open": 1}
    assert seen["hash"]["inputs"]["pin"].startswith("sha256:")
    assert seen["mask"]["variables"] == {"pin": "[REDACTED]", "open": 1}


def test_a_sensitive_default_is_masked_like_a_sensitive_input(acme: Wire) -> None:
    definition = _marked(settings={})
    definition["variables"] = [
        variable("pin", sensitive=True, defaultValue=PIN),
        variable("second", sensitive=True, defaultValue=OTHER),
        variable("other", sensitive=True, defaultValue=OTHER),
    ]

    run_id = acme.create(acme.register(definition))
    found = acme.finished(run_id)

    assert found["nodeStates"]["right"]["status"] == "completed"
    assert found["variables"]["pin"] == "[REDACTED]"
    assert not leaks(surfaces(acme, run_id), PIN, OTHER)


def test_the_plain_values_survive_a_restart_and_are_encrypted(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--log-format", "json", "--log-level", "debug")
    wire = connect(ACME, host)
    run_id = wire.create(wire.register(_marked()), INPUTS)
    host.restart()
    wire = connect(ACME, host)
    meanwhile = stored(host)

    found = wire.finished(run_id)

    assert found["nodeStates"]["right"]["status"] == "completed"
    assert not leaks(meanwhile, PIN, OTHER)
    assert not leaks(surfaces(wire, run_id), PIN, OTHER)
    assert not leaks(host.log(), PIN, OTHER)
    host.stop()
    assert not leaks(stored(host), PIN, OTHER)


def test_a_copied_or_reported_sensitive_value_is_masked_there_too(
    acme: Wire,
) -> None:
    definition = workflow(
        [
            node("copy", "core.identity", inputs={"unmarked": from_variable("pin")}),
            node(
                "again",
                "core.setVariable",
                config={"name": "open"},
                inputs={"value": from_variable("pin")},
            ),
            node(
                "write",
                "core.channelWrite",
                config={"channelName": "open-channel", "reducer": "append"},
                inputs={"value": from_variable("pin")},
            ),
            node("complain", "core.conditional", config={"expression": "variables.pin"}),
        ],
        variables=[variable("pin", sensitive=True)],
    )

    run_id = acme.create(acme.register(definition), {"pin": PIN})
    found = acme.finished(run_id)

    assert found["nodeStates"]["complain"]["error"]["code"] == "expression_error"
    assert not leaks(surfaces(acme, run_id), PIN)


def test_a_copied_sensitive_value_is_still_plain_for_later_nodes(acme: Wire) -> None:
    length = len(PIN)
    definition = workflow(
        [
            node("copy", "core.identity", inputs={"unmarked": from_variable("pin")}),
            node(
                "use",
                "core.conditional",
                config={"expression": f"size(nodes.copy.unmarked) == {length}"},
            ),
        ],
        variables=[variable("pin", sensitive=True)],
    )

    found = acme.run(acme.register(definition), {"pin": PIN})

    assert found["nodeStates"]["use"]["outputs"] == {"result": True}


def test_a_sensitive_value_passed_to_a_child_is_masked_in_the_child(acme: Wire) -> None:
    child = workflow(
        [
            delay("wait", 50),
            node(
                "use",
                "core.conditional",
                config={"expression": f"size(variables.received) == {len(PIN)}"},
            ),
        ],
        variables=[variable("received")],
    )
    config = {"workflowId": acme.register(child), "inputMapping": {"received": "pin"}}
    parent = workflow(
        [node("call", "core.subWorkflow", config=config)],
        variables=[variable("pin", sensitive=True)],
    )

    found = acme.run(acme.register(parent), {"pin": PIN})

    child_id = found["childRuns"][0]["runId"]
    assert acme.snapshot(child_id)["nodeStates"]["use"]["outputs"] == {"result": True}
    assert not leaks(surfaces(acme, child_id) + surfaces(acme, found["runId"]), PIN)


def test_passthrough_masks_only_credentials(acme: Wire) -> None:
    definition = workflow(
        [node("copy", "core.identity", inputs={"pin": from_variable("pin")})],
        variables=[variable("pin", sensitive=True), variable("key")],
        metadata={"complianceConfig": {"maskingMode": "passthrough"}},
    )

    found = acme.run(acme.register(definition), {"pin": PIN, "key": CANARIES["openai"]})

    assert found["inputs"] == {"pin": PIN, "key": "[REDACTED]"}
    assert found["outputs"] == {"copy": {"pin": PIN}}


def test_a_variable_that_once_held_a_copy_shows_its_new_value(acme: Wire) -> None:
    pin = {"value": from_variable("pin")}
    definition = workflow(
        [
            node("copy", "core.setVariable", config={"name": "open"}, inputs=pin),
            node("over", "core.setVariable", config={"name": "open", "value": "harmless text"}),
            node("read", "core.getVariable", config={"name": "open"}),
        ],
        variables=[variable("pin", sensitive=True)],
    )

    found = acme.run(acme.register(definition), {"pin": PIN})

    assert found["outputs"] == {"read": {"value": "harmless text"}}

"""Answers in a sensitive run: encrypted beside the run, and restored after a restart."""

from __future__ import annotations

import pytest

from tests.support.simulation import IDENTITY, node, sketch
from wopr.engine.fold.fold import fold_all
from wopr.engine.graph import compile_graph
from wopr.engine.state import RunState, initial_state
from wopr.protocol.documents import Json, JsonObject, to_iso
from wopr.protocol.events import RunEvent
from wopr.runs.sensitive_values import SensitiveValues
from wopr.security.encryption import KEY_BYTES, Seal

WORD = "the-curlew-calls-over-the-marsh"
MASK = "[REDACTED]"
EDIT = {"action": "edit-accept", "editedArtifactData": WORD}
SEAL = Seal(b"k" * KEY_BYTES)
AT = 1_800_000_000_000


def event(event_type: str, sequence: int, payload: JsonObject) -> RunEvent:
    return RunEvent(
        event_id=f"event-{sequence}",
        run_id="run-1",
        type=event_type,
        payload=payload,
        timestamp=to_iso(AT),
        sequence=sequence,
        node_id="gate",
    )


def suspended(kind: str) -> RunState:
    """Return a run that waits at a node with sensitive outputs."""
    gate = node("gate", "core.interrupt", outputSensitivity={"value": True})
    state = initial_state(IDENTITY, compile_graph(sketch([gate]), frozenset()))
    asked: JsonObject = {"nodeId": "gate", "interruptId": "int-1", "kind": kind, "key": "gate:0"}
    return fold_all(
        state, [event("node.started", 0, {"nodeId": "gate"}), event("node.suspended", 1, asked)]
    )


def answered(sensitive: SensitiveValues, state: RunState, value: Json) -> RunState:
    """Return the run after this answer, as the log has it."""
    said: JsonObject = {"nodeId": "gate", "interruptId": "int-1", "resumeValue": value}
    shown = sensitive.mask(state, "interrupt.resolved", "gate", said, AT)
    return fold_all(state, [event("interrupt.resolved", 2, shown)])


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("custom", WORD, MASK),
        ("custom", {"a": WORD, "b": [1, 2]}, {"a": MASK, "b": MASK}),
        ("clarification", {"answers": {"q": WORD}}, {"answers": {"q": MASK}}),
        ("approval", EDIT, EDIT | {"editedArtifactData": MASK}),
        ("low-confidence", {"action": "accept"}, {"action": "accept"}),
        ("low-confidence", {"ratified": True}, {"ratified": True}),
        ("low-confidence", {"decision": "granted"}, {"decision": MASK}),
        ("low-confidence", {"action": "pay"}, MASK),
        ("low-confidence", 7, MASK),
    ],
)
def test_an_answer_is_masked_in_the_state_and_restored_from_encrypted_values(
    kind: str, value: Json, shown: Json
) -> None:
    sensitive = SensitiveValues()
    state = answered(sensitive, suspended(kind), value)

    sealed = sensitive.encrypt(SEAL, "run-1")
    again = SensitiveValues.decrypt(sealed, SEAL, "run-1")

    assert sealed is not None
    assert WORD.encode() not in sealed
    assert state.answers == {"gate:0": shown}
    assert again.unmask(state).answers == {"gate:0": value}


def test_a_restored_vault_masks_the_answer_and_not_the_protocol_s_words() -> None:
    sensitive = SensitiveValues()
    state = answered(sensitive, suspended("approval"), EDIT)
    again = SensitiveValues.decrypt(sensitive.encrypt(SEAL, "run-1"), SEAL, "run-1")

    shown = again.mask(state, "log.appended", "", {"message": f"edit-accept: {WORD}"}, AT)

    assert shown["message"].startswith("edit-accept: [REDACTED")
    assert WORD not in shown["message"]


def test_a_state_from_before_an_answer_does_not_get_it() -> None:
    sensitive = SensitiveValues()
    before = suspended("custom")
    answered(sensitive, before, WORD)

    assert sensitive.unmask(before).answers == {}

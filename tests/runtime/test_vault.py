"""Answers in a vault: sealed beside the run, and in place again after a restart."""

from __future__ import annotations

import pytest
from tests.engine.simulation import IDENTITY, node, sketch

from wopr.engine.fold import fold_all
from wopr.engine.graph import compile_graph
from wopr.engine.state import RunState, initial
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_iso
from wopr.runtime.vault import Vault
from wopr.security.seal import KEY_BYTES, Seal

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
    """A run that waits at a node whose outputs are sensitive."""
    gate = node("gate", "core.interrupt", outputSensitivity={"value": True})
    state = initial(IDENTITY, compile_graph(sketch([gate]), frozenset()))
    asked: JsonObject = {"nodeId": "gate", "interruptId": "int-1", "kind": kind, "key": "gate:0"}
    return fold_all(
        state, [event("node.started", 0, {"nodeId": "gate"}), event("node.suspended", 1, asked)]
    )


def answered(vault: Vault, state: RunState, value: Json) -> RunState:
    """The run after this answer, as the log has it."""
    said: JsonObject = {"nodeId": "gate", "interruptId": "int-1", "resumeValue": value}
    shown = vault.conceal(state, "interrupt.resolved", "gate", said, AT)
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
def test_an_answer_is_masked_in_the_state_and_true_again_after_its_vault_was_sealed(
    kind: str, value: Json, shown: Json
) -> None:
    vault = Vault()
    state = answered(vault, suspended(kind), value)

    sealed = vault.sealed(SEAL, "run-1")
    again = Vault.unseal(sealed, SEAL, "run-1")

    assert sealed is not None
    assert WORD.encode() not in sealed
    assert state.answers == {"gate:0": shown}
    assert again.reveal(state).answers == {"gate:0": value}


def test_a_vault_that_was_opened_again_hides_the_answer_and_not_the_protocol_s_words() -> None:
    vault = Vault()
    state = answered(vault, suspended("approval"), EDIT)
    again = Vault.unseal(vault.sealed(SEAL, "run-1"), SEAL, "run-1")

    shown = again.conceal(state, "log.appended", "", {"message": f"edit-accept: {WORD}"}, AT)

    assert shown["message"].startswith("edit-accept: [REDACTED")
    assert WORD not in shown["message"]


def test_a_state_from_before_an_answer_is_not_given_it() -> None:
    vault = Vault()
    before = suspended("custom")
    answered(vault, before, WORD)

    assert vault.reveal(before).answers == {}

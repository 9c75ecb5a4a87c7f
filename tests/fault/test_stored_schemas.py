"""Gates whose answer schema was registered before schema limits existed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.conftest import Database
from tests.support.definitions import node, workflow
from tests.support.fragile_host import FragileHost
from tests.support.schemas import expanding_schema
from wopr.protocol.documents import JsonObject

ANY: JsonObject = {}
DEEP = expanding_schema(60)
WIDE: JsonObject = {"pattern": "((a{1,100}){1,100}){1,100}"}
ROLE = {"requiredRole": "admin"}


def questions(schema: JsonObject) -> list[JsonObject]:
    return [{"id": "q", "question": "Which?", "schema": schema}]


def custom(schema: JsonObject) -> JsonObject:
    return {"kind": "custom", "data": {"customKind": "acme.ask"}, "resumeSchema": schema}


GATES: dict[str, tuple[str, Callable[[JsonObject], JsonObject], str]] = {
    "interrupt": ("core.interrupt", custom, "resumeSchema"),
    "asked": (
        "core.interrupt",
        lambda schema: {"kind": "clarification", "data": {"questions": questions(schema)}},
        "data.questions.0.schema",
    ),
    "clarification": (
        "core.clarificationGate",
        lambda schema: {"questions": questions(schema)},
        "questions.0.schema",
    ),
    "conversation": ("core.conversationGate", lambda schema: {"turnSchema": schema}, "turnSchema"),
    "governance": (
        "core.openwop.governance.approvalGate",
        lambda schema: ROLE | {"resumeSchema": schema},
        "resumeSchema",
    ),
}


def gate(name: str, schema: JsonObject) -> JsonObject:
    type_id, config, _ = GATES[name]
    return workflow([node("gate", type_id, config=config(schema))], id=name)


@pytest.fixture
def host(tmp_path: Path, new_database: Callable[[], Database]) -> Iterator[FragileHost]:
    with new_database() as variables:
        made = FragileHost(tmp_path / "host", (), variables)
        made.start()
        yield made
        if made.process is not None:
            made.kill()


def store(host: FragileHost, definition: JsonObject) -> None:
    """Replace the registered definition in the database."""
    body = msgspec.json.encode(definition)
    if isinstance(host.database, str):
        with psycopg.connect(host.database, options="-c search_path=wopr") as server:
            server.execute(
                "UPDATE workflows SET body = %s WHERE workflow_id = %s", (body, definition["id"])
            )
    else:
        with closing(sqlite3.connect(host.database)) as file, file:
            file.execute(
                "UPDATE workflows SET body = ? WHERE workflow_id = ?", (body, definition["id"])
            )


def test_a_node_with_a_stored_schema_above_a_limit_fails_and_names_both(host: FragileHost) -> None:
    stored = {name: WIDE if name == "interrupt" else DEEP for name in GATES}
    for name in GATES:
        host.wire.register(gate(name, ANY))
    host.stop()
    for name, schema in stored.items():
        store(host, gate(name, schema))
    host.start()

    for name, (_, _, path) in GATES.items():
        ended = host.wire.run(name)

        assert (ended["status"], ended["error"]["code"]) == ("failed", "validation_error"), name
        limit = "at most 20000 are allowed" if name == "interrupt" else "more than 100 deep"
        assert ended["error"]["message"].startswith(f"config.{path}: the "), name
        assert limit in ended["error"]["message"]
    host.check()


def test_a_run_already_waiting_at_such_a_gate_can_be_answered(host: FragileHost) -> None:
    waiting = host.wire.create(host.wire.register(gate("interrupt", ANY)))
    host.wire.events_until(waiting, "interrupt.requested")
    host.stop()
    store(host, gate("interrupt", WIDE))
    host.start()

    taken = host.wire.post(f"/v1/runs/{waiting}/interrupts/gate", {"resumeValue": {"a": 1}})

    assert taken.status_code == 200
    assert host.wire.finished(waiting)["status"] == "completed"
    host.check()

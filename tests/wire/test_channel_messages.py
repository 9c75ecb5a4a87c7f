"""Messages in a channel: the record of RFC 0002, its later form, and incomplete records."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from wopr.protocol.documents import Json, JsonObject

MESSAGE: JsonObject = {
    "messageId": "m-1",
    "from": "core.acme.writer",
    "to": "core.acme.editor",
    "groupId": "desk",
    "content": {"text": "a draft", "pages": [1, 2]},
    "ts": 1_767_225_600_000,
}


def written(wire: Wire, value: Json) -> JsonObject:
    """Return the snapshot of a run that writes one message."""
    write = node("write", "core.channelWrite", config={"channelName": "talk", "value": value})
    channels = {"talk": {"reducer": "message"}}
    return wire.run(wire.register(workflow([write], channels=channels)))


def talk(wire: Wire, value: Json) -> list[JsonObject]:
    ended = written(wire, value)
    assert ended["status"] == "completed", ended["error"]
    entries: list[JsonObject] = ended["channels"]["talk"]
    return entries


def test_a_record_of_the_rfc_is_accepted_and_kept_unchanged(acme: Wire) -> None:
    assert talk(acme, MESSAGE) == [MESSAGE]


@pytest.mark.parametrize(
    "change",
    [
        {"content": None},
        {"from": "user"},
        {"role": "agent"},
        {"role": "anything", "mood": {"is": "fine"}},
    ],
    ids=["null content", "a user", "a role", "unknown members"],
)
def test_a_record_can_have_any_content_a_role_and_unknown_members(
    acme: Wire, change: JsonObject
) -> None:
    assert talk(acme, MESSAGE | change) == [MESSAGE | change]


def test_the_optional_members_may_be_absent(acme: Wire) -> None:
    least = {name: MESSAGE[name] for name in ("messageId", "from", "content", "ts")}

    assert talk(acme, least) == [least]


@pytest.mark.parametrize(
    ("record", "filled"),
    [
        (
            {"role": "assistant", "agentId": "core.acme.writer", "timestamp": 1_767_225_600_000},
            {"from": "core.acme.writer", "ts": 1_767_225_600_000},
        ),
        (
            {"role": "user", "timestamp": "2026-01-01T00:00:00.000Z"},
            {"from": "user", "ts": 1_767_225_600_000},
        ),
    ],
    ids=["an agent", "a role and a time"],
)
def test_a_record_of_the_later_form_is_stored_with_the_members_of_the_rfc(
    acme: Wire, record: JsonObject, filled: JsonObject
) -> None:
    record = {"messageId": "m-1", "content": "hello", **record}

    assert talk(acme, record) == [record | filled]


def test_the_log_has_the_record_with_the_members_of_the_rfc(acme: Wire) -> None:
    ended = written(acme, {"messageId": "m-1", "role": "user", "content": "x", "timestamp": 5})

    [event] = [e for e in acme.log(ended["runId"]) if e["type"] == "channel.written"]
    assert event["payload"]["value"]["from"] == "user"
    assert event["payload"]["value"]["ts"] == 5


@pytest.mark.parametrize(
    ("record", "named", "unnamed"),
    [
        ({}, ["messageId", "from", "content", "ts"], []),
        ({"messageId": "m-1", "content": "x"}, ["from", "ts"], ["messageId", "content"]),
        ({**MESSAGE, "messageId": "", "ts": "soon"}, ["messageId", "ts"], ["content"]),
        ({**MESSAGE, "from": 7, "to": 8, "groupId": 9}, ["from", "to", "groupId"], ["ts"]),
        ({**MESSAGE, "ts": True}, ["ts"], ["content"]),
        ({**MESSAGE, "ts": 1.5, "role": 3}, ["ts", "role"], ["content"]),
        ({**MESSAGE, "timestamp": "late", "ts": None}, ["ts"], ["from"]),
    ],
)
def test_an_incomplete_record_is_refused_and_every_fault_is_named(
    acme: Wire, record: JsonObject, named: list[str], unnamed: list[str]
) -> None:
    ended = written(acme, record)

    assert ended["status"] == "failed"
    assert ended["error"]["code"] == "validation_error"
    message = ended["error"]["message"]
    assert "channel talk" in message
    assert [name for name in named if f"needs {name}, " not in message] == []
    assert [name for name in unnamed if f"needs {name}, " in message] == []


def test_text_is_not_a_record(acme: Wire) -> None:
    assert "must be an object" in written(acme, "hello")["error"]["message"]

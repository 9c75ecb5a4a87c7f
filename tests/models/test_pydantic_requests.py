from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic_ai import messages as said
from pydantic_ai.models.test import TestModel

from wopr.agents.models.port import Message, ModelRequest, ToolCallPart
from wopr.agents.models.pydantic_adapter import OUTPUT_TOOL, history_of, parameters_of
from wopr.protocol.documents import Json, JsonObject

CITY: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}}


def kinds(history: Sequence[said.ModelMessage]) -> list[list[str]]:
    return [[part.part_kind for part in message.parts] for message in history]


def test_messages_between_two_answers_are_one_request() -> None:
    history = history_of(
        [
            Message(role="system", content="You help."),
            Message(role="user", content="Hello."),
            Message(role="assistant", content="Yes?"),
            Message(role="user", content="Help."),
        ]
    )

    assert kinds(history) == [["system-prompt", "user-prompt"], ["text"], ["user-prompt"]]


def test_a_tool_s_return_names_its_call() -> None:
    call = ToolCallPart(id="c1", name="find", arguments={"q": "x"})

    history = history_of(
        [
            Message(role="assistant", content="", tool_calls=[call]),
            Message(role="tool", content="[]", name="find", tool_call_id="c1"),
        ]
    )

    returned = history[1].parts[0]
    assert isinstance(returned, said.ToolReturnPart)
    assert (returned.tool_name, returned.tool_call_id) == ("find", "c1")


def test_earlier_answers_are_sent_back_unchanged() -> None:
    response = said.ModelResponse(
        parts=[said.ThinkingPart(content="Hm.", signature="signed"), said.TextPart(content="Yes.")]
    )
    [raw] = said.ModelMessagesTypeAdapter.dump_python([response], mode="json")

    [again] = history_of([Message(role="assistant", content="Yes.", raw=raw)])

    assert again.parts == response.parts


def test_a_refused_answer_by_tool_is_closed() -> None:
    response = said.ModelResponse(
        parts=[said.ToolCallPart(tool_name=OUTPUT_TOOL, args={"city": 7}, tool_call_id="c9")]
    )
    [raw] = said.ModelMessagesTypeAdapter.dump_python([response], mode="json")

    history = history_of(
        [
            Message(role="assistant", content='{"city": 7}', raw=raw),
            Message(role="user", content="Answer again."),
        ]
    )

    assert kinds(history)[1] == ["tool-return", "user-prompt"]


@pytest.mark.parametrize(
    ("profile", "schema", "mode"),
    [
        ({"supports_json_schema_output": True}, CITY, "native"),
        ({"supports_json_schema_output": False}, CITY, "tool"),
        # Providers require an object at the root.
        ({"supports_json_schema_output": True}, {"type": "array"}, "tool"),
    ],
)
def test_the_answer_s_schema_is_requested_in_the_way_that_the_model_supports(
    profile: Json, schema: JsonObject, mode: str
) -> None:
    request = ModelRequest(
        provider="openai",
        model="m",
        messages=[Message(role="user", content="Where?")],
        response_schema=schema,
    )

    assert parameters_of(TestModel(profile=profile), request).output_mode == mode

from __future__ import annotations

import hashlib

import pytest
from msgspec.structs import replace

from wopr.agents.models.port import Message, ModelRequest, ToolCallPart, ToolSpec
from wopr.agents.models.request_key import request_key, semantic_request
from wopr.protocol.documents import Json

PLAIN = ModelRequest(
    provider="OpenAI", model="gpt-4o", messages=[Message(role="user", content="Grüße")]
)
TOOLS = [
    ToolSpec(name="b", description="", parameters={"type": "object"}),
    ToolSpec(name="a", description="", parameters={"type": "object"}),
]


def test_the_key_is_the_hash_of_the_canonical_request() -> None:
    canonical = (
        '{"messages":[{"content":"Grüße","role":"user"}],"model":"gpt-4o","provider":"openai",'
        '"recipe":"openwop-semantic-request-v2"}'
    )

    assert request_key(PLAIN) == hashlib.sha256(canonical.encode()).hexdigest()


def test_the_order_of_tools_does_not_matter() -> None:
    assert request_key(replace(PLAIN, tools=TOOLS)) == request_key(
        replace(PLAIN, tools=TOOLS[::-1])
    )


def test_text_is_not_normalised() -> None:
    composed = replace(PLAIN, messages=[Message(role="user", content="\u00e9")])
    decomposed = replace(PLAIN, messages=[Message(role="user", content="e\u0301")])

    assert request_key(composed) != request_key(decomposed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "gpt-4o-mini"),
        ("provider", "anthropic"),
        ("temperature", 0.5),
        ("top_p", 0.5),
        ("max_output_tokens", 10),
        ("stop", ["x"]),
        ("seed", 1),
        ("response_schema", {"type": "object"}),
        ("provider_options", {"service_tier": "flex"}),
        ("tools", TOOLS),
        ("messages", [Message(role="user", content="Gruss")]),
    ],
)
def test_everything_that_affects_the_answer_affects_the_key(field: str, value: Json) -> None:
    assert request_key(replace(PLAIN, **{field: value})) != request_key(PLAIN)


def test_the_provider_s_own_form_of_a_message_does_not_matter() -> None:
    said = Message(role="assistant", content="Hi", raw={"timestamp": "2026-01-01"})
    without = Message(role="assistant", content="Hi")

    assert request_key(replace(PLAIN, messages=[said])) == request_key(
        replace(PLAIN, messages=[without])
    )


def test_tool_calls_of_an_assistant_are_part_of_its_message() -> None:
    call = ToolCallPart(id="c1", name="find", arguments={"q": "x"})
    messages = [
        Message(role="assistant", content="Wait.", tool_calls=[call]),
        Message(role="tool", content="[]", name="find", tool_call_id="c1"),
    ]

    found = semantic_request(replace(PLAIN, messages=messages))["messages"]

    assert found[0]["content"] == [
        {"type": "text", "text": "Wait."},
        {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": "x"}},
    ]
    assert found[1] == {"role": "tool", "content": "[]", "name": "find", "toolCallId": "c1"}


def test_further_options_are_grouped_under_the_provider_s_name() -> None:
    found = semantic_request(replace(PLAIN, provider_options={"tier": "flex"}))

    assert found["providerOptions"] == {"vendor.openai.tier": "flex"}

"""Scripted models with Anthropic's Messages API."""

from __future__ import annotations

import json

from tests.models.model_server import ModelServer, no_message
from tests.models.turns import CallTools, Fail, Refuse, Say, Turn
from wopr.protocol.documents import Json, JsonObject

_STOPS = {"stop": "end_turn", "length": "max_tokens"}
_ERRORS = {429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
# A complete block, and the pieces in which it is streamed.
Block = tuple[JsonObject, list[JsonObject]]


class AnthropicServer(ModelServer):
    """Anthropic's API at an operator's address."""

    provider = "anthropic"
    family = "claude-sonnet-4-5"
    key_header = "Authorization"

    def model_request(self, path: str, body: bytes) -> JsonObject | None:
        asked: JsonObject | None = None
        if path.partition("?")[0] == "/v1/messages":
            asked = json.loads(body)
        return asked

    def whole(self, turn: Turn, request: JsonObject) -> Json:
        end, (asked, said) = _end(turn)
        content = [block for block, _ in _blocks(turn)]
        return _message(request, asked, said) | {"content": content} | end

    def streamed(self, turn: Turn, request: JsonObject) -> list[str]:
        end, (asked, said) = _end(turn)
        events: list[JsonObject] = [
            {"type": "message_start", "message": _message(request, asked, 1)},
            *(e for place, block in enumerate(_blocks(turn)) for e in _pieces(place, block)),
            {"type": "message_delta", "delta": end, "usage": {"output_tokens": said}},
            {"type": "message_stop"},
        ]
        return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]

    def error(self, turn: Fail) -> Json:
        kind = _ERRORS.get(turn.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": turn.message}}

    def schema_of(self, request: JsonObject) -> JsonObject:
        schema: JsonObject = request["output_config"]["format"]["schema"]
        return schema


def _message(request: JsonObject, asked: int, said: int) -> JsonObject:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": asked, "output_tokens": said},
    }


def _pieces(place: int, block: Block) -> list[JsonObject]:
    whole, deltas = block
    empty = {"text": "", "thinking": "", "signature": "", "input": {}}
    begun = {name: empty.get(name, value) for name, value in whole.items()}
    return [
        {"type": "content_block_start", "index": place, "content_block": begun},
        *({"type": "content_block_delta", "index": place, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": place},
    ]


def _blocks(turn: Turn) -> list[Block]:
    match turn:
        case Say():
            thought = [_thought(turn.reasoning)] if turn.reasoning else []
            return [*thought, _text(turn.text, turn.pieces)]
        case CallTools():
            said = [_text(turn.text)] if turn.text else []
            return [*said, *(_call(*each) for each in enumerate(turn.calls))]
        case Refuse():
            return []
        case _:
            raise no_message(turn)


def _text(text: str, pieces: tuple[str, ...] = ()) -> Block:
    deltas: list[JsonObject] = [{"type": "text_delta", "text": piece} for piece in pieces or [text]]
    return {"type": "text", "text": text}, deltas


def _thought(text: str) -> Block:
    signed: JsonObject = {"type": "signature_delta", "signature": "signed"}
    whole: JsonObject = {"type": "thinking", "thinking": text, "signature": "signed"}
    return whole, [{"type": "thinking_delta", "thinking": text}, signed]


def _call(place: int, call: tuple[str, Json]) -> Block:
    name, given = call
    written = given if isinstance(given, str) else json.dumps(given)
    whole: JsonObject = {
        "type": "tool_use",
        "id": f"toolu_{place}_{name}",
        "name": name,
        "input": given,
    }
    return whole, [{"type": "input_json_delta", "partial_json": written}]


def _end(turn: Turn) -> tuple[JsonObject, tuple[int, int]]:
    """Return the stop reason of a turn and its tokens."""
    match turn:
        case Say():
            return {"stop_reason": _STOPS[turn.finish]}, turn.tokens
        case CallTools():
            return {"stop_reason": "tool_use"}, turn.tokens
        case Refuse():
            why = {"type": "refusal", "category": None, "explanation": turn.text}
            return {"stop_reason": "refusal", "stop_details": why}, (10, 5)
        case _:
            raise no_message(turn)

"""Scripted models with the OpenAI chat API."""

from __future__ import annotations

import json

from tests.models.model_server import ModelServer, no_message
from tests.models.turns import CallTools, Fail, Refuse, Say, Turn
from wopr.protocol.documents import Json, JsonObject


class OpenAiServer(ModelServer):
    """A custom server compatible with OpenAI's."""

    provider = "local"
    base = "/v1"
    family = "model"
    key_header = "Authorization"

    def model_request(self, path: str, body: bytes) -> JsonObject | None:
        asked: JsonObject | None = None
        if path.endswith("/chat/completions"):
            asked = json.loads(body)
        return asked

    def whole(self, turn: Turn, request: JsonObject) -> Json:
        message, finish, tokens = _message(turn)
        return _document(request) | {
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": _usage(tokens),
        }

    def streamed(self, turn: Turn, request: JsonObject) -> list[str]:
        return [*(f"data: {json.dumps(e)}\n\n" for e in _chunks(turn, request)), "data: [DONE]\n\n"]

    def error(self, turn: Fail) -> Json:
        return {"error": {"message": turn.message}}

    def schema_of(self, request: JsonObject) -> JsonObject:
        schema: JsonObject = request["response_format"]["json_schema"]["schema"]
        return schema


def _usage(tokens: tuple[int, int]) -> JsonObject:
    asked, said = tokens
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _tool_calls(turn: CallTools) -> list[JsonObject]:
    return [
        {
            "index": place,
            "id": f"call_{place}_{name}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given),
            },
        }
        for place, (name, given) in enumerate(turn.calls)
    ]


def _document(request: JsonObject, kind: str = "chat.completion") -> JsonObject:
    return {
        "id": "chatcmpl-1",
        "object": kind,
        "created": 1_700_000_000,
        "model": request["model"],
    }


def _chunk(request: JsonObject, delta: JsonObject, finish: str | None = None) -> JsonObject:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return _document(request, "chat.completion.chunk") | {"choices": choices}


def _chunks(turn: Turn, request: JsonObject) -> list[JsonObject]:
    message, finish, tokens = _message(turn)
    deltas: list[JsonObject] = [{"role": "assistant"}]
    deltas += [{n: message[n]} for n in ("reasoning_content", "refusal") if n in message]
    pieces = turn.pieces if isinstance(turn, Say) else ()
    deltas += [{"content": piece} for piece in pieces or [message["content"] or ""]]
    deltas += [{"tool_calls": message["tool_calls"]}] if "tool_calls" in message else []
    counted = _chunk(request, {}) | {"choices": [], "usage": _usage(tokens)}
    return [*(_chunk(request, delta) for delta in deltas), _chunk(request, {}, finish), counted]


def _message(turn: Turn) -> tuple[JsonObject, str, tuple[int, int]]:
    """Return a turn as a message, with its stop reason and its tokens."""
    message: JsonObject = {"role": "assistant", "content": None}
    match turn:
        case Say():
            thought = {"reasoning_content": turn.reasoning} if turn.reasoning else {}
            return message | thought | {"content": turn.text}, turn.finish, turn.tokens
        case CallTools():
            wishes = {"content": turn.text or None, "tool_calls": _tool_calls(turn)}
            return message | wishes, "tool_calls", turn.tokens
        case Refuse():
            return message | {"refusal": turn.text}, "stop", (10, 5)
        case _:
            raise no_message(turn)

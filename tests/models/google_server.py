"""Scripted models with Google's Gemini API."""

from __future__ import annotations

import json
import re

from tests.models.model_server import ModelServer, no_message
from tests.models.turns import CallTools, Fail, Refuse, Say, Turn
from wopr.agents.models.pydantic_adapter import OUTPUT_TOOL
from wopr.protocol.documents import Json, JsonObject

_PATH = re.compile(r"/v1(?:beta)?/models/([^:]+):(stream)?[gG]enerateContent(?:\?.*)?")
_STOPS = {"stop": "STOP", "length": "MAX_TOKENS"}
_STATUSES = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 404: "NOT_FOUND"}


class GoogleServer(ModelServer):
    """Google's API at an operator's address."""

    provider = "google"
    family = "gemini-2.5-pro"
    key_header = "x-goog-api-key"
    messages_member = "contents"
    explains_refusals = False

    def model_request(self, path: str, body: bytes) -> JsonObject | None:
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        asked: JsonObject = json.loads(body)
        return asked | {"model": found[1], "stream": found[2] is not None}

    def whole(self, turn: Turn, request: JsonObject) -> Json:
        stop, tokens = _end(turn)
        parts = [part for piece in _pieces(turn) for part in piece]
        return _answer(request, parts, stop) | {"usageMetadata": _usage(tokens)}

    def streamed(self, turn: Turn, request: JsonObject) -> list[str]:
        stop, tokens = _end(turn)
        chunks = [_answer(request, piece) for piece in _pieces(turn)]
        chunks += [_answer(request, [], stop) | {"usageMetadata": _usage(tokens)}]
        return [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]

    def error(self, turn: Fail) -> Json:
        status = _STATUSES.get(turn.status, "INVALID_ARGUMENT")
        return {"error": {"code": turn.status, "message": turn.message, "status": status}}

    def schema_of(self, request: JsonObject) -> JsonObject:
        schema: JsonObject = request["generationConfig"]["responseJsonSchema"]
        return schema

    def conclusion(self, answer: JsonObject) -> Turn:
        # Gemini 2.5 supports either tools or a schema, so the answer is a tool as well.
        return CallTools(((OUTPUT_TOOL, answer),))


def _usage(tokens: tuple[int, int]) -> JsonObject:
    asked, said = tokens
    return {
        "promptTokenCount": asked,
        "candidatesTokenCount": said,
        "totalTokenCount": asked + said,
    }


def _answer(request: JsonObject, parts: list[JsonObject], stop: str = "") -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}} if parts else {}
    return {
        "candidates": [candidate | ({"finishReason": stop} if stop else {})],
        "modelVersion": request["model"],
    }


def _pieces(turn: Turn) -> list[list[JsonObject]]:
    """Return the parts of an answer as they are streamed."""
    match turn:
        case Say():
            thought = [[{"text": turn.reasoning, "thought": True}]] if turn.reasoning else []
            return [*thought, *([{"text": piece}] for piece in turn.pieces or (turn.text,))]
        case CallTools():
            said: list[JsonObject] = [{"text": turn.text}] if turn.text else []
            calls = [{"functionCall": {"name": n, "args": given}} for n, given in turn.calls]
            return [said + calls]
        case Refuse():
            # What it would have said is kept back.
            return []
        case _:
            raise no_message(turn)


def _end(turn: Turn) -> tuple[str, tuple[int, int]]:
    """Return the stop reason of a turn and its tokens."""
    match turn:
        case Say():
            return _STOPS[turn.finish], turn.tokens
        case CallTools():
            return "STOP", turn.tokens
        case Refuse():
            return "SAFETY", (10, 5)
        case _:
            raise no_message(turn)

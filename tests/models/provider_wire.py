"""What Anthropic and Google answer on the wire, scripted, behind the real clients."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from httpx2 import AsyncClient, MockTransport, Request, Response

from wopr.agents.credentials import Credentials
from wopr.agents.providers import ProviderModels, ProviderSettings
from wopr.security.redact import Redactor
from wopr.security.seal import Seal
from wopr.store.open import open_store

KEYS = {"ANTHROPIC_API_KEY": "key-of-anthropic", "GOOGLE_API_KEY": "key-of-google"}
IN_TOKENS, OUT_TOKENS = 12, 7


class Answers:
    """Gives these responses in turn, and keeps the requests."""

    def __init__(self, *responses: Response) -> None:
        self.requests: list[Request] = []
        self._left = list(responses)

    def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        return self._left.pop(0)

    def body(self, place: int) -> Any:
        """A request's JSON."""
        return json.loads(self.requests[place].content)


@asynccontextmanager
async def provider_models(answers: Answers) -> AsyncGenerator[ProviderModels, None]:
    """The host's own models, whose providers give these answers."""
    store = await open_store(f"sqlite:///:memory:{uuid4().hex}")
    redactor = Redactor()
    credentials = Credentials(store, Seal(b"k" * 32), redactor, environment={})
    settings = ProviderSettings(environment=KEYS)
    async with AsyncClient(transport=MockTransport(answers), timeout=600) as client:
        yield ProviderModels(settings, credentials, redactor, client)
    await store.close()


def events(*lines: dict[str, Any]) -> Response:
    """A stream of server-sent events."""
    text = "".join(
        f"event: {line['type']}\ndata: {json.dumps(line)}\n\n"
        if "type" in line
        else f"data: {json.dumps(line)}\n\n"
        for line in lines
    )
    return Response(200, headers={"content-type": "text/event-stream"}, text=text)


def anthropic(block: dict[str, Any], delta: dict[str, Any], stop: str = "end_turn") -> Response:
    """A streamed message of one block."""
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": IN_TOKENS, "output_tokens": 1},
    }
    ended = {"stop_reason": stop, "stop_sequence": None}
    return events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": OUT_TOKENS}},
        {"type": "message_stop"},
    )


def anthropic_text(text: str, stop: str = "end_turn") -> Response:
    """A streamed text."""
    return anthropic({"type": "text", "text": ""}, {"type": "text_delta", "text": text}, stop)


def anthropic_call(name: str, arguments: dict[str, Any]) -> Response:
    """A streamed tool call."""
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    return anthropic(block, delta, "tool_use")


def google(*parts: dict[str, Any], stop: str = "STOP") -> Response:
    """A streamed answer of these parts."""
    last = len(parts) - 1
    return events(
        *(
            {
                "candidates": [
                    {
                        "content": {"role": "model", "parts": [part]},
                        **({"finishReason": stop} if place == last else {}),
                    }
                ],
                "usageMetadata": {
                    "promptTokenCount": IN_TOKENS,
                    "candidatesTokenCount": OUT_TOKENS,
                    "totalTokenCount": IN_TOKENS + OUT_TOKENS,
                },
                "modelVersion": "gemini-2.5-flash",
            }
            for place, part in enumerate(parts)
        )
    )

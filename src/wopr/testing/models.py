"""Models that say what a script tells them, so that agents can be tested without any provider."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import msgspec

from wopr.api.agent import Agent, agent_id
from wopr.api.tools import tool_in
from wopr.nodes.models import (
    Asking,
    ModelAnswer,
    ModelFault,
    ModelRequest,
    ModelUsage,
    ToolCallPart,
)
from wopr.nodes.typed import to_json
from wopr.protocol.documents import Json, JsonObject, Unset

# The tool that an agent hands over with.
HAND_OVER: Final = "hand_over"
_SURE_MEMBERS: Final = frozenset({"answer", "confidence", "reasoning"})
_CAPABILITIES: Final = frozenset({"structured-output", "function-calling", "reasoning"})
_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Say:
    """An answer, and how sure the model is of it where it is asked."""

    value: object
    sure: float = 1.0
    because: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model wants called."""

    tool: str
    arguments: JsonObject = field(default_factory=dict[str, Any])


Step: TypeAlias = "Say | Call | ModelAnswer | Exception | str | Callable[[ModelRequest], Step]"


def say(value: object, *, sure: float = 1.0, because: str = "") -> Say:
    """Let the model answer: text, or a value of the agent's output type."""
    return Say(value, sure, because)


def call(tool: Callable[..., Any] | str, **arguments: object) -> Call:
    """Let the model call a tool, by its name or as the function itself."""
    declared = None if isinstance(tool, str) else tool_in(tool)
    name = tool if isinstance(tool, str) else tool.__name__ if declared is None else declared.name
    given: JsonObject = to_json(arguments)
    # A model knows a tool by what stands behind its scope.
    return Call(name.rpartition(":")[2], given)


def hand_over(to: Agent | str, reason: str) -> Call:
    """Let the model hand its task over to another agent."""
    return Call(HAND_OVER, {"toAgentId": agent_id(to), "reason": reason})


class ScriptedModels:
    """Answers requests from scripts, one step a request; `requests` are those that came.

    A script that ends with a function asks it for all further answers.
    """

    def __init__(self, scripts: Mapping[str, Sequence[Step]]) -> None:
        self.requests: list[ModelRequest] = []
        self._scripts = {name: deque(steps) for name, steps in scripts.items()}

    async def ask(self, request: ModelRequest, asking: Asking) -> ModelAnswer:
        """Take the next step of the model's script."""
        self.requests.append(request)
        answer = _answer(request, self._next(request))
        if (
            asking.on_delta is not None
            and answer.text
            and isinstance(request.response_schema, Unset)
        ):
            for word in answer.text.splitlines(keepends=True):
                await asking.on_delta("text", word)
        return answer

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """A scripted model can do whatever its script does."""
        return _CAPABILITIES

    def _next(self, request: ModelRequest) -> Step:
        named = f"{request.provider}:{request.model}"
        for name in (named, request.model, ""):
            steps = self._scripts.get(name)
            if steps:
                is_endless = len(steps) == 1 and callable(steps[0])
                return steps[0] if is_endless else steps.popleft()
        raise ModelFault(f"the script of {named} has no answer left", retryable=False)


def scripted(*steps: Step, **scripts: Sequence[Step]) -> ScriptedModels:
    """Models that take these steps in turn; a keyword is the script of one model alone.

    A step is `say(...)`, `call(...)`, `hand_over(...)`, plain text, an exception to raise, or a
    function that gets the request and returns a step. A function in the last place answers for ever.
    """
    for name, script in {**scripts, "": steps}.items():
        _check_script(name, script)
    return ScriptedModels(scripts | ({"": steps} if steps else {}))


def _check_script(name: str, script: object) -> None:
    """Refuse a script where it is written, and not where a model takes its step."""
    if not isinstance(script, list | tuple):
        raise TypeError(f"the script of {name} is a list of steps, not {script!r}")
    for step in cast("Sequence[object]", script):
        if not isinstance(step, Say | Call | ModelAnswer | Exception | str) and not callable(step):
            raise TypeError(f"{step!r} is no step: give say(...), call(...), a text or a function")


def _answer(request: ModelRequest, step: Step) -> ModelAnswer:
    if isinstance(step, Exception):
        raise step
    if isinstance(step, ModelAnswer):
        return step
    if isinstance(step, Call):
        return _tool_call(request, step)
    if isinstance(step, str | Say):
        text = _text(request, Say(step) if isinstance(step, str) else step)
        return ModelAnswer(text=text, usage=_usage(request, text), model=request.model)
    return _answer(request, step(request))


def _tool_call(request: ModelRequest, step: Call) -> ModelAnswer:
    # The same request gets the same id, so that a replay finds what was recorded.
    part = ToolCallPart(
        id=f"call-{len(request.messages)}", name=step.tool, arguments=step.arguments
    )
    return ModelAnswer(
        tool_calls=[part],
        finish_reason="tool_calls",
        usage=_usage(request, step.tool),
        model=request.model,
    )


def _text(request: ModelRequest, said: Say) -> str:
    schema = request.response_schema
    if isinstance(schema, Unset):
        return str(said.value)
    value: Json = said.value
    if cast("JsonObject", schema.get("properties", {})).keys() >= _SURE_MEMBERS:
        value = {"answer": said.value, "confidence": said.sure, "reasoning": said.because}
    return msgspec.json.encode(to_json(value)).decode()


def _usage(request: ModelRequest, text: str) -> ModelUsage:
    asked = sum(len(message.content) for message in request.messages)
    return ModelUsage(
        input_tokens=asked // _CHARACTERS_PER_TOKEN,
        output_tokens=len(text) // _CHARACTERS_PER_TOKEN,
        cost_usd=0.0,
    )

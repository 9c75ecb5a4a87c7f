"""Scripted models, to test agents without a provider."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import msgspec

from wopr.agents.loop.request_plan import HAND_OVER
from wopr.agents.models.port import (
    ModelAnswer,
    ModelFault,
    ModelRequest,
    ModelUsage,
    RequestOptions,
    ToolCallPart,
)
from wopr.api.agent import Agent, agent_id
from wopr.api.tools import tool_in
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.json_schema.conversion import to_json

_CONFIDENCE_MEMBERS: Final = frozenset({"answer", "confidence", "reasoning"})
_CAPABILITIES: Final = frozenset({"structured-output", "function-calling", "reasoning"})
_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Say:
    """A step in which the model answers."""

    value: object
    sure: float = 1.0
    because: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A step in which the model calls a tool."""

    tool: str
    arguments: JsonObject = field(default_factory=dict[str, Any])


Step: TypeAlias = "Say | Call | ModelAnswer | Exception | str | Callable[[ModelRequest], Step]"


def say(value: object, *, sure: float = 1.0, because: str = "") -> Say:
    """Create a step in which the model answers.

    Args:
        value: A text, or a value of the agent's output type.
        sure: The confidence of the model, from 0 to 1.
        because: The reason that the model gives.

    Returns:
        The step, for `scripted`.

    Example:
        >>> from wopr.testing import say, scripted
        >>> models = scripted(say("billing", sure=0.4), say("shipping"))
    """
    return Say(value, sure, because)


def call(tool: Callable[..., Any] | str, **arguments: object) -> Call:
    """Create a step in which the model calls a tool.

    Args:
        tool: The tool's name, or the function.
        **arguments: The arguments of the call.

    Returns:
        The step, for `scripted`.

    Example:
        >>> from wopr.testing import call
        >>> call("search_orders", customer="ada").arguments
        {'customer': 'ada'}
    """
    declared = None if isinstance(tool, str) else tool_in(tool)
    name = tool if isinstance(tool, str) else tool.__name__ if declared is None else declared.name
    given: JsonObject = to_json(arguments)
    # In model requests, tool names have no scope.
    return Call(name.rpartition(":")[2], given)


def hand_over(to: Agent | str, reason: str) -> Call:
    """Create a step in which the model hands its task over to another agent.

    Args:
        to: The other agent, or its id.
        reason: The reason that the model gives.

    Returns:
        The step, for `scripted`.

    Example:
        >>> from wopr.testing import hand_over
        >>> hand_over("acme.billing", "wants money back").arguments["toAgentId"]
        'local.acme.billing'
    """
    return Call(HAND_OVER, {"toAgentId": agent_id(to), "reason": reason})


class ScriptedModels:
    """A model provider that answers from scripts, one step per request. See `scripted`.

    If the last step of a script is a function, it answers all further requests.

    Args:
        scripts: The steps by model. The steps under "" are for all other models.

    Attributes:
        requests: The requests so far.

    Example:
        >>> from wopr.testing import ScriptedModels, say
        >>> models = ScriptedModels({"triage": [say("billing")], "": [say("Hello")]})
    """

    def __init__(self, scripts: Mapping[str, Sequence[Step]]) -> None:
        self.requests: list[ModelRequest] = []
        self._scripts = {name: deque(steps) for name, steps in scripts.items()}

    async def ask(self, request: ModelRequest, options: RequestOptions) -> ModelAnswer:
        """Answer a request with the next step of the model's script.

        Args:
            request: The request.
            options: Options of the request.

        Returns:
            The answer.

        Raises:
            ModelFault: The script has no step left.
        """
        self.requests.append(request)
        answer = _answer(request, self._next(request))
        if (
            options.on_delta is not None
            and answer.text
            and isinstance(request.response_schema, Unset)
        ):
            for word in answer.text.splitlines(keepends=True):
                await options.on_delta("text", word)
        return answer

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """Return the capabilities of a model. Scripted models have all capabilities.

        Args:
            provider: The provider.
            model: The model.

        Returns:
            The capabilities.
        """
        return _CAPABILITIES

    def _next(self, request: ModelRequest) -> Step:
        named = f"{request.provider}:{request.model}"
        for name in (named, request.model, ""):
            steps = self._scripts.get(name)
            if steps:
                is_endless = len(steps) == 1 and callable(steps[0])
                return steps[0] if is_endless else steps.popleft()
        raise ModelFault(f"the script of {named} has no step left", retryable=False)


def scripted(*steps: Step, **scripts: Sequence[Step]) -> ScriptedModels:
    """Create a model provider that answers with these steps, one per request.

    A step is `say(...)`, `call(...)`, `hand_over(...)`, a text, an exception to raise, or a
    function that gets the request and returns a step. A function as the last step answers all
    further requests.

    Args:
        *steps: The steps of all models without their own script.
        **scripts: The steps by model.

    Returns:
        The provider, for `memory_host(models=...)`.

    Raises:
        TypeError: A script is not a list, or a step is not valid.

    Example:
        >>> from wopr.testing import call, say, scripted
        >>> models = scripted(triage=[call("search_orders", customer="ada"), say("billing")])
    """
    for name, script in {**scripts, "": steps}.items():
        _check_script(name, script)
    return ScriptedModels(scripts | ({"": steps} if steps else {}))


def _check_script(name: str, script: object) -> None:
    """Check a script when it is created, before a model uses it."""
    if not isinstance(script, list | tuple):
        raise TypeError(f"the script of {name} must be a list of steps, not {script!r}")
    for step in cast("Sequence[object]", script):
        if not isinstance(step, Say | Call | ModelAnswer | Exception | str) and not callable(step):
            raise TypeError(
                f"{step!r} is not a step: use say(...), call(...), a text or a function"
            )


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
    # The same request gets the same id, so that a replay finds the recorded call.
    part = ToolCallPart(
        id=f"call-{len(request.messages)}", name=step.tool, arguments=step.arguments
    )
    return ModelAnswer(
        tool_calls=[part],
        finish_reason="tool_calls",
        usage=_usage(request, step.tool),
        model=request.model,
    )


def _text(request: ModelRequest, step: Say) -> str:
    schema = request.response_schema
    if isinstance(schema, Unset):
        return str(step.value)
    value: Json = step.value
    if cast("JsonObject", schema.get("properties", {})).keys() >= _CONFIDENCE_MEMBERS:
        value = {"answer": step.value, "confidence": step.sure, "reasoning": step.because}
    return msgspec.json.encode(to_json(value)).decode()


def _usage(request: ModelRequest, text: str) -> ModelUsage:
    characters = sum(len(message.content) for message in request.messages)
    return ModelUsage(
        input_tokens=characters // _CHARACTERS_PER_TOKEN,
        output_tokens=len(text) // _CHARACTERS_PER_TOKEN,
        cost_usd=0.0,
    )

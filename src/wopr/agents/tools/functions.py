"""Python functions as tools: the schema from the type hints, the description from the docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec

from wopr.agents.threads import run_in_thread
from wopr.agents.tools.tool import LOCAL, ToolContext, ToolFault, Transport
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.json_schema.conversion import from_json, schema_of, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function that models may call. A function that is not async runs in a thread."""

    name: str
    description: str
    parameters: JsonObject
    function: Callable[..., Any]
    arguments_type: type[msgspec.Struct]
    # The parameter that gets the `ToolContext`; empty without one.
    context_name: str = ""
    required_scopes: tuple[str, ...] = ()
    transport: Transport = "native"

    async def call(self, arguments: JsonObject, context: ToolContext) -> Json:
        """Call the function with decoded arguments and return its result as JSON."""
        given = self._decode(arguments)
        if self.context_name:
            given[self.context_name] = context
        if inspect.iscoroutinefunction(self.function):
            return to_json(await self.function(**given))
        call = partial(self.function, **given)
        about = {"tool": self.name, "node_id": context.node_id, "run_id": context.run_id}
        return to_json(await run_in_thread(call, self.function, **about))

    def _decode(self, arguments: JsonObject) -> dict[str, Any]:
        try:
            decoded = from_json(arguments, self.arguments_type)
        except msgspec.ValidationError as fault:
            raise ToolFault(str(fault), code="validation_error") from fault
        return {
            name: value
            for name in self.arguments_type.__struct_fields__
            if (value := getattr(decoded, name)) is not msgspec.UNSET
        }


def function_tool(
    function: Callable[..., Any],
    *,
    name: str = "",
    description: str = "",
    required_scopes: tuple[str, ...] = (),
) -> FunctionTool:
    """Return a tool that calls a function. Raises `TypeError` for a parameter without a type hint.

    The default name is `local:<function>`.
    """
    own = function.__name__
    hints = _hints(own, function)
    fields: list[tuple[str, Any, Any]] = []
    context_name = ""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"tool {own}: *{parameter.name} has no schema: declare every argument")
        if parameter.name not in hints:
            raise TypeError(f"tool {own}: {parameter.name} needs a type hint")
        if hints[parameter.name] is ToolContext:
            context_name = parameter.name
            continue
        fields.append(_field(parameter, hints[parameter.name]))
    arguments_type = msgspec.defstruct(own, fields, kw_only=True, forbid_unknown_fields=True)
    return FunctionTool(
        name=name or f"{LOCAL}:{own}",
        description=description or inspect.getdoc(function) or own,
        parameters=_schema(own, arguments_type),
        function=function,
        arguments_type=arguments_type,
        context_name=context_name,
        required_scopes=required_scopes,
    )


def _hints(own: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of the arguments. The hint of the return value is not evaluated."""
    plain = inspect.unwrap(function)
    given = getattr(plain, "__annotations__", {})
    arguments = SimpleNamespace(
        __annotations__={name: hint for name, hint in given.items() if name != "return"}
    )
    try:
        return get_type_hints(arguments, getattr(plain, "__globals__", {}), include_extras=True)
    except NameError as fault:
        raise TypeError(
            f"tool {own}: a type hint cannot be read: {fault}; define the types of the arguments "
            "at the top of the file, before the tool"
        ) from fault


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any, Any]:
    # The default of the function applies: an absent argument is not passed.
    if parameter.default is parameter.empty:
        return parameter.name, hint, msgspec.NODEFAULT
    return parameter.name, hint | msgspec.UnsetType, msgspec.UNSET


def _schema(own: str, arguments_type: type[msgspec.Struct]) -> JsonObject:
    """Return the schema of the arguments, with its definitions."""
    try:
        found = schema_of(arguments_type)
    except TypeError as fault:
        raise TypeError(f"tool {own}: {fault}") from fault
    definitions: JsonObject = found.get("$defs", {})
    schema: JsonObject = definitions.pop(own)
    schema.pop("title", None)
    return schema | {"$defs": definitions} if definitions else schema

"""`@tool`: functions that agents may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from wopr.agents.functions import FunctionTool, tool_of
from wopr.api.types import BELONGS
from wopr.nodes.tools import Tool

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__wopr_tool__"


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *, name: str = "", description: str = "", required_scopes: tuple[str, ...] = ()
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    required_scopes: tuple[str, ...] = (),
) -> F | Callable[[F], F]:
    """Let agents call a function: its schema comes from its type hints, its words from its docstring.

    The function stays what it was and can be called as before. Without a name agents know it as
    `local:<function>`. `required_scopes` are what the key that started a run must be allowed.
    """

    def declare(function: F) -> F:
        made = tool_of(
            function, name=name, description=description, required_scopes=required_scopes
        )
        setattr(function, _MARK, made)
        setattr(function, BELONGS, "a tool: it is given to an agent, as one of its `tools`")
        return function

    return declare if function is None else declare(function)


def tool_in(value: object) -> FunctionTool | None:
    """The tool that a function was declared as, or None."""
    found = getattr(value, _MARK, None)
    return found if isinstance(found, FunctionTool) else None


def as_tool(value: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is, or the one that a function is."""
    if callable(value):
        return tool_in(value) or tool_of(value)
    return value

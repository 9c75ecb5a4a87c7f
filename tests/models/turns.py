"""The behaviour of a scripted model for one request, with any API."""

from __future__ import annotations

from dataclasses import dataclass

from wopr.protocol.documents import Json


class Turn:
    """The behaviour of a model for one request."""


@dataclass(frozen=True)
class Say(Turn):
    """Answer with a text, in these pieces when it is streamed."""

    text: str
    pieces: tuple[str, ...] = ()
    reasoning: str = ""
    finish: str = "stop"
    tokens: tuple[int, int] = (10, 5)


@dataclass(frozen=True)
class CallTools(Turn):
    """Request tool calls: their names and arguments; arguments that are text are sent unchanged."""

    calls: tuple[tuple[str, Json], ...]
    text: str = ""
    tokens: tuple[int, int] = (10, 5)


@dataclass(frozen=True)
class Refuse(Turn):
    """Decline to answer."""

    text: str = "I cannot help with that."


@dataclass(frozen=True)
class Fail(Turn):
    """Answer with an error."""

    status: int
    retry_after: str = ""
    message: str = "the provider is out of order"


@dataclass(frozen=True)
class Hang(Turn):
    """Accept the request and never respond."""


@dataclass(frozen=True)
class Garble(Turn):
    """Respond 200 with a body that is not JSON."""


@dataclass(frozen=True)
class BreakOff(Turn):
    """Begin a text, and close the connection."""

    text: str


@dataclass(frozen=True)
class GarbleLate(Turn):
    """Begin a text, and continue with data that is not JSON."""

    text: str


@dataclass(frozen=True)
class FailLate(Turn):
    """Begin a text, and continue with an error."""

    text: str

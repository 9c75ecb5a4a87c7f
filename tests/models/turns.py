"""What a scripted model does when it is asked, whatever API it speaks."""

from __future__ import annotations

from dataclasses import dataclass

from wopr.protocol.documents import Json


class Turn:
    """What a model does when it is asked."""


@dataclass(frozen=True)
class Say(Turn):
    """Say a text, in these pieces when it is streamed."""

    text: str
    pieces: tuple[str, ...] = ()
    reasoning: str = ""
    finish: str = "stop"
    tokens: tuple[int, int] = (10, 5)


@dataclass(frozen=True)
class CallTools(Turn):
    """Ask for tools: their names and arguments; arguments that are text go out as they are."""

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
    """Take the request and say nothing until the server ends."""


@dataclass(frozen=True)
class Garble(Turn):
    """Answer 200 with a body that is no JSON."""


@dataclass(frozen=True)
class BreakOff(Turn):
    """Begin to say a text, and hang up."""

    text: str


@dataclass(frozen=True)
class GarbleLate(Turn):
    """Begin to say a text, and go on with what is no JSON."""

    text: str


@dataclass(frozen=True)
class FailLate(Turn):
    """Begin to say a text, and go on with an error."""

    text: str

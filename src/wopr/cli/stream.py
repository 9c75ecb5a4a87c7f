"""The event stream of a run, with failures as the command line tells them."""

from __future__ import annotations

import httpx
import msgspec

from wopr.api import stream
from wopr.api.stream import Frame, FrameParser, LineSplitter, Patience
from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode

__all__ = [
    "EventStream",
    "Frame",
    "FrameParser",
    "LineSplitter",
    "Patience",
    "decode_object",
]


class EventStream(stream.EventStream):
    """A run's frames; every failure is a `CliError`."""

    def is_passing(self, error: Exception) -> bool:
        """Tell whether it is a loss on the way; a refusal goes on as it is."""
        if isinstance(error, CliError):
            return error.exit_code is ExitCode.UNAVAILABLE
        return isinstance(error, httpx.TransportError)

    def lost(self, message: str) -> Exception:
        """The failure of a stream that is given up."""
        return CliError(
            message,
            ExitCode.UNAVAILABLE,
            code="stream_lost",
            hint="the run is not affected; look again with `wopr runs tail`",
        )


def decode_object(frame: Frame) -> dict[str, object]:
    """The frame's data as a JSON object."""
    try:
        return msgspec.json.decode(frame.data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError):
        raise CliError(
            f"the server sent a {frame.event} frame that is not a JSON object",
            ExitCode.UNAVAILABLE,
            code="bad_answer",
        ) from None

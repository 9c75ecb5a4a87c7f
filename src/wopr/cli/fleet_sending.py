"""Send KAHN lines to a server that may be busy, away for a while, or of another opinion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from wopr.cli.documents import list_of, object_of
from wopr.cli.errors import CliError
from wopr.cli.fleet_lines import MOST_BYTES, Chunk, Fault
from wopr.protocol.documents import JsonObject

if TYPE_CHECKING:
    from wopr.cli.connection import Client

SHORTEST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
TOO_LARGE: Final = "payload_too_large"
WOULD_REWRITE: Final = "would_rewrite"
_REFUSALS: Final = frozenset({"validation_error", WOULD_REWRITE})


@dataclass(slots=True)
class Sent:
    """What has come of all that was sent."""

    accepted: int = 0
    duplicate: int = 0
    runs: set[str] = field(default_factory=set[str])
    faults: list[Fault] = field(default_factory=list[Fault])
    # Pushed runs that the server drops soon, and when.
    expiring: dict[str, str] = field(default_factory=dict[str, str])

    def warning(self) -> str:
        """What to tell of the runs that the server drops soon; empty when there are none."""
        if not self.expiring:
            return ""
        soonest = min(self.expiring, key=lambda run_id: self.expiring[run_id])
        return (
            f"{len(self.expiring)} pushed runs are dropped within 7 days, {soonest} first, at "
            f"{self.expiring[soonest]}: push or export them to keep them"
        )

    def document(self) -> JsonObject:
        """The report as `--json` prints it."""
        return {
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "runs": len(self.runs),
            "errors": [fault.document() for fault in self.faults],
            "expiring": self.expiring,
        }


class Refused(Exception):
    """The server takes nothing of a chunk, because of these lines; `code` says what is wrong."""

    def __init__(self, code: str, faults: list[Fault]) -> None:
        super().__init__(code)
        self.code = code
        self.faults = faults


class Sender:
    """Sends chunks one after the other, and each again until it is taken or refused.

    `patience` is how many seconds in a row it goes on trying; `say` is told of every pause.
    """

    def __init__(
        self,
        client: Client,
        *,
        patience: float,
        say: Callable[[str], None],
        chance: Random | None = None,
    ) -> None:
        import anyio

        self.sent = Sent()
        self._client = client
        self._patience = patience
        self._say = say
        self._chance = chance or Random()
        self._asking = anyio.Lock()

    async def answered(self) -> None:
        """Wait for the answer to what is just being sent; a pause between two tries is none."""
        async with self._asking:
            pass

    async def most_bytes(self) -> int:
        """Ask the server how much it takes at once."""
        discovery, _ = await self._client.discovery()
        told: object = object_of(discovery.document.get("kahn")).get("maxBodyBytes")
        return told if isinstance(told, int) and told > 0 else MOST_BYTES

    async def send(self, chunk: Chunk) -> None:
        """Send a chunk. Raises `Refused`, and `CliError` for what trying again does not mend."""
        if not chunk.lines:
            return
        try:
            answer = await self._keep_trying(chunk.body)
        except CliError as error:
            if error.code == TOO_LARGE and len(chunk.lines) > 1:
                for half in chunk.halves():
                    await self.send(half)
                return
            refused = _refused(chunk, error)
            plain = _plainer(chunk, refused)
            if plain == chunk:
                raise refused from error
            await self.send(plain)
            return
        self.sent.accepted += int(answer["accepted"])
        self.sent.duplicate += int(answer["duplicate"])
        self.sent.runs.update(str(run) for run in list_of(answer.get("runs")))
        for each in map(object_of, list_of(answer.get("expiring"))):
            self.sent.expiring[str(each["run_id"])] = str(each["drops_at"])

    async def _keep_trying(self, body: bytes) -> JsonObject:
        import anyio

        pause, waited = SHORTEST_PAUSE, 0.0
        while True:
            try:
                async with self._asking:
                    return (await self._client.ingest(body)).document
            except CliError as error:
                wait = self._wait(error, pause)
                if not error.is_transient or waited + wait > self._patience:
                    raise
                self._say(f"{error.message}; trying again in {wait:.1f} s")
            await anyio.sleep(wait)
            waited += wait
            pause = min(pause * 2, LONGEST_PAUSE)

    def _wait(self, error: CliError, pause: float) -> float:
        """How long to wait: as the server asks, else the pause with some chance in it."""
        if error.retry_after is not None:
            return error.retry_after
        return pause * self._chance.uniform(0.5, 1.0)


def files_of(faults: list[Fault]) -> set[Path]:
    """The files that faults are in."""
    return {fault.path for fault in faults}


def _plainer(chunk: Chunk, refused: Exception) -> Chunk:
    """The chunk without the graphs of files that the server has otherwise: it may be for those."""
    if not isinstance(refused, Refused) or refused.code != WOULD_REWRITE:
        return chunk
    return chunk.without_graphs(files_of(refused.faults))


def _refused(chunk: Chunk, error: CliError) -> Exception:
    """The refusal with its lines found again in their files; any other failure as it is."""
    if error.code == TOO_LARGE:
        line = chunk.lines[0]
        return Refused(error.code, [Fault(line.path, line.number, error.message)])
    named = [object_of(entry) for entry in list_of(error.details.get("errors"))]
    faults = [
        Fault(chunk.lines[at - 1].path, chunk.lines[at - 1].number, str(entry.get("message", "")))
        for entry in named
        if isinstance(at := entry.get("line"), int) and 1 <= at <= len(chunk.lines)
    ]
    if error.code in _REFUSALS and faults:
        return Refused(error.code, faults)
    return error

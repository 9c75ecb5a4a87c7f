"""A run in a program's hands: follow it, answer it, judge it, and go another way from it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Generic, TypeVar

import msgspec

from wopr.api.connection import Connection
from wopr.api.documents import InboxItem, Listing
from wopr.api.errors import HostError, RunCancelled, RunFailed
from wopr.api.events import Event, read_event
from wopr.api.requests import segment
from wopr.api.views import RunView
from wopr.nodes.typed import from_json
from wopr.protocol.annotations import (
    ActingAnnotationCreate,
    Actor,
    Anchor,
    Annotation,
    AnnotationList,
    Signal,
)
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.forks import ForkAccepted, ForkPreview, ForkRun, OptionsOverlay, RunDiff
from wopr.protocol.interrupts import AnswerTaken, ResolveInterrupt
from wopr.protocol.runs import (
    TERMINAL,
    CancelAnswer,
    CancelRun,
    DrainPolicy,
    PauseAnswer,
    PauseRun,
    ResumeAnswer,
    ResumeRun,
    RunSnapshot,
    RunStatus,
)

Out = TypeVar("Out")

# The short forms of an answer, and what they stand for on the wire.
_ACTIONS: Final = frozenset({"accept", "reject"})
_WAITING: Final = frozenset({"waiting-approval", "waiting-input", "waiting-external", "paused"})


class Run(Generic[Out]):
    """One run of a workflow. Nothing is kept here: every call asks the host."""

    def __init__(self, connection: Connection, run_id: str, kind: type[Out]) -> None:
        self.id = run_id
        self._connection = connection
        self._kind = kind
        self._path = f"/v1/runs/{segment(run_id)}"

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def snapshot(self) -> RunSnapshot:
        """Read the run as it stands now."""
        return await self._connection.get(self._path, RunSnapshot)

    async def events(
        self, *, mode: str = "debug", after: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """Follow the run's events from the first one, or after a sequence, until it ends.

        A lost connection is taken up where it broke off, without a gap or a duplicate.
        """
        async with aclosing(self._connection.frames(self.id, mode=mode, after=after)) as frames:
            async for frame in frames:
                yield read_event(frame)

    async def log(self) -> list[Event]:
        """Read the whole log as it stands, without waiting for more."""
        found = await self._connection.get(
            f"{self._path}/events", _Log, headers={"Accept": "application/json"}
        )
        return found.events

    async def result(self) -> Out:
        """Wait for the end and give the outputs. Raises `RunFailed` or `RunCancelled`."""
        async with aclosing(self.events(mode="updates")) as events:
            async for _ in events:
                pass
        return self._outputs(await self._connection.ended(self.id))

    async def settled(self) -> RunSnapshot:
        """Wait until the run has ended or waits for somebody, and read it."""
        snapshot = await self.snapshot()
        if not _is_settled(snapshot.status):
            async with aclosing(self.events(mode="updates")) as events:
                async for _ in events:
                    snapshot = await self.snapshot()
                    if _is_settled(snapshot.status):
                        break
        return snapshot

    async def waits(self) -> list[InboxItem]:
        """Read what the run waits for, as the inbox shows it."""
        page = await self._connection.get(
            "/v1/interrupts", Listing[InboxItem], {"runId": self.id, "limit": "100"}
        )
        return page.items

    async def answer(
        self, value: Json, *, node: str | None = None, feedback: str | None = None
    ) -> RunStatus:
        """Answer what the run waits for; the status that this led to.

        "accept" and "reject" are short for the answers to an approval or an unsure agent; anything
        else is the resume value itself. Where several nodes wait, `node` names one.
        """
        wait = await self._wait(node)
        path = f"{self._path}/interrupts/{segment(wait.node_id)}"
        body = ResolveInterrupt(resume_value=_resume_value(value, feedback))
        query = {"interruptId": wait.interrupt_id}
        taken = await self._connection.post(path, body, AnswerTaken, query=query)
        return taken.status

    async def annotate(
        self,
        *,
        rating: int | None = None,
        label: str | None = None,
        correction: str | None = None,
        flag: bool = False,
        note: str | None = None,
        node: str | None = None,
        event: str | None = None,
        actor: str | None = None,
    ) -> Annotation:
        """Judge the run, or one of its nodes or events: give exactly one signal.

        `actor` is the id of an agent that judges, for keys with the scope `annotations:actor`.
        """
        body = ActingAnnotationCreate(
            signal=_signal(rating, label, correction, flag=flag),
            target=Anchor(node_id=_or_unset(node), event_id=_or_unset(event)),
            note=_or_unset(note),
            actor=UNSET if actor is None else Actor(principal_ref=actor),
        )
        return await self._connection.post(f"{self._path}/annotations", body, Annotation)

    async def annotations(self) -> list[Annotation]:
        """Read what was said about the run, oldest first."""
        found = await self._connection.get(f"{self._path}/annotations", AnnotationList)
        return found.annotations

    async def fork(
        self,
        *,
        after: int | None = None,
        inputs: JsonObject | None = None,
        configurable: JsonObject | None = None,
    ) -> Run[Out]:
        """Start a branch that keeps the log up to and with event `after` and goes on from there.

        Without `after` it begins anew, and may then have other inputs.
        """
        body = _branch(after, inputs, configurable)
        return await self._forked(body)

    async def preview_fork(
        self,
        *,
        after: int | None = None,
        inputs: JsonObject | None = None,
        configurable: JsonObject | None = None,
    ) -> ForkPreview:
        """Read what `fork` with the same arguments would execute, without executing it."""
        body = _branch(after, inputs, configurable)
        return await self._connection.post(f"{self._path}:fork?dryRun=true", body, ForkPreview)

    async def replay(self) -> Run[Out]:
        """Work the run out again from what was recorded, without any outside effect."""
        return await self._forked(ForkRun(mode="replay"))

    async def diff(self, other: Run[Out] | str) -> RunDiff:
        """Compare the run with another, event by event and in what they came to."""
        against = other if isinstance(other, str) else other.id
        return await self._connection.get(f"{self._path}:diff", RunDiff, {"against": against})

    async def cancel(self, reason: str | None = None) -> RunStatus:
        """Cancel the run."""
        body = CancelRun(reason=_or_unset(reason))
        return (await self._connection.post(f"{self._path}/cancel", body, CancelAnswer)).status

    async def pause(self, reason: str | None = None, *, immediate: bool = False) -> RunStatus:
        """Let the run stop after the nodes that are under way, or at once."""
        policy: DrainPolicy = "immediate" if immediate else "drain-current-node"
        body = PauseRun(reason=_or_unset(reason), drain_policy=policy)
        return (await self._connection.post(f"{self._path}:pause", body, PauseAnswer)).status

    async def resume(self, reason: str | None = None) -> RunStatus:
        """Let a paused run go on."""
        body = ResumeRun(reason=_or_unset(reason))
        return (await self._connection.post(f"{self._path}:resume", body, ResumeAnswer)).status

    async def view(self) -> RunView:
        """Read the run and its log for people: a notebook and a terminal show it as a table."""
        return RunView(await self.snapshot(), await self.log())

    async def to_frame(self) -> Json:
        """Read the log as a pandas DataFrame, one row per event."""
        return (await self.view()).to_frame()

    def _outputs(self, snapshot: RunSnapshot) -> Out:
        if snapshot.status == "cancelled":
            raise RunCancelled(self.id)
        error = snapshot.error
        if not isinstance(error, Unset):
            details = {} if isinstance(error.details, Unset) else error.details
            raise RunFailed(self.id, error.code, error.message, details)
        outputs = {} if isinstance(snapshot.outputs, Unset) else snapshot.outputs
        return from_json(outputs, self._kind)

    async def _wait(self, node: str | None) -> InboxItem:
        waits = await self.waits()
        found = [wait for wait in waits if node in (None, wait.node_id)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(wait.node_id for wait in waits) or "no node"
        wanted = "" if node is None else f", and not {node}"
        raise HostError(
            f"run {self.id}: {names} waits for an answer{wanted}", code="interrupt_not_found"
        )

    async def _forked(self, body: ForkRun) -> Run[Out]:
        accepted = await self._connection.post(f"{self._path}:fork", body, ForkAccepted)
        return Run(self._connection, accepted.run_id, self._kind)


class _Log(msgspec.Struct, frozen=True, kw_only=True):
    """The log as one document."""

    events: list[Event]


def _branch(
    after: int | None, inputs: JsonObject | None, configurable: JsonObject | None
) -> ForkRun:
    overlay = OptionsOverlay(inputs=inputs or {}, configurable=configurable or {})
    from_seq = 0 if after is None else after + 1
    return ForkRun(mode="branch", from_seq=from_seq, run_options_overlay=overlay)


def _is_settled(status: RunStatus) -> bool:
    return status in TERMINAL or status in _WAITING


def _or_unset(text: str | None) -> str | Unset:
    return UNSET if text is None else text


def _resume_value(value: Json, feedback: str | None) -> Json:
    if isinstance(value, str) and value in _ACTIONS:
        return {"action": value} | ({} if feedback is None else {"feedback": feedback})
    return value


def _signal(rating: int | None, label: str | None, correction: str | None, *, flag: bool) -> Signal:
    signals = [
        *([] if rating is None else [Signal(kind="rating", rating=rating)]),
        *([] if label is None else [Signal(kind="label", label=label)]),
        *([] if correction is None else [Signal(kind="correction", correction=correction)]),
        *([Signal(kind="flag")] if flag else []),
    ]
    if len(signals) != 1:
        raise ValueError("give exactly one of rating, label, correction and flag")
    return signals[0]

"""A client of one run: follow, answer, annotate, fork and control it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from wopr.api.client import Client
from wopr.api.errors import HostError, RunCancelled, RunFailed
from wopr.api.events import Event, read_event
from wopr.api.views import RunView
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.forks import ForkPreview, ForkRun, OptionsOverlay, RunDiff
from wopr.protocol.interrupts import InboxItem, ResolveInterrupt
from wopr.protocol.json_schema.conversion import from_json
from wopr.protocol.resources.annotations import (
    ActingAnnotationCreate,
    Actor,
    Anchor,
    Annotation,
    Signal,
)
from wopr.protocol.runs import (
    TERMINAL,
    CancelRun,
    DrainPolicy,
    PauseRun,
    ResumeRun,
    RunSnapshot,
    RunStatus,
)

Out = TypeVar("Out")

# Short forms of an answer to an approval.
_ACTIONS: Final = frozenset({"accept", "reject"})
_WAITING: Final = frozenset({"waiting-approval", "waiting-input", "waiting-external", "paused"})


class Run(Generic[Out]):
    """One run of a workflow. `Host.start` and `Host.run` return it.

    The object stores no state of the run: every call reads from the host.

    Attributes:
        id: The run's id.

    Example:
        >>> from wopr import Host
        >>> async def main(host: Host) -> None:
        ...     run = await host.start("order", {"total": 12.5})
        ...     await run.settled()
        ...     await run.answer("accept", feedback="checked")
        ...     print(await run.result())
    """

    def __init__(self, client: Client, run_id: str, kind: type[Out]) -> None:
        self.id = run_id
        self._client = client
        self._kind = kind

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def snapshot(self) -> RunSnapshot:
        """Read the current state of the run.

        Returns:
            The snapshot. Large values are references.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        return (await self._client.snapshot(self.id)).document

    async def events(
        self, *, mode: str = "debug", after: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """Follow the run's events until it ends.

        A lost connection is resumed without a gap and without duplicates.

        Args:
            mode: The stream mode: `debug` for all events, `updates`, `values` or `messages`.
            after: The sequence after which to start. By default, all events are read.

        Yields:
            The events.

        Raises:
            HostError: The host refused the call, or did not respond to ten consecutive attempts.

        Example:
            >>> from wopr import Run
            >>> async def show(run: Run[object]) -> None:
            ...     async for event in run.events(mode="updates"):
            ...         print(event.sequence, event.type)
        """
        async with aclosing(self._client.events(self.id, mode=mode, after=after)) as frames:
            async for frame in frames:
                yield read_event(frame)

    async def log(self) -> list[Event]:
        """Read the events so far, without waiting for more.

        Returns:
            The events, oldest first.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        return await self._client.log(self.id)

    async def result(self) -> Out:
        """Wait for the end of the run and return its outputs.

        Returns:
            The outputs, of the workflow's output type.

        Raises:
            RunFailed: The run failed.
            RunCancelled: The run was cancelled.
            HostError: The host refused the call or did not respond.
            msgspec.ValidationError: The outputs are not of the workflow's output type.
        """
        async with aclosing(self.events(mode="updates")) as events:
            async for _ in events:
                pass
        return self._outputs((await self._client.snapshot_with_outputs(self.id)).document)

    async def settled(self) -> RunSnapshot:
        """Wait until the run has ended, is paused, or waits for an answer.

        Returns:
            The snapshot of the run at that time.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        snapshot = await self.snapshot()
        if not _is_settled(snapshot.status):
            async with aclosing(self.events(mode="updates")) as events:
                async for _ in events:
                    snapshot = await self.snapshot()
                    if _is_settled(snapshot.status):
                        break
        return snapshot

    async def waits(self) -> list[InboxItem]:
        """Read the open interrupts of the run.

        Returns:
            The interrupts, as the inbox shows them.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        return (await self._client.inbox({"runId": self.id, "limit": "100"})).document.items

    async def answer(
        self, value: Json, *, node: str | None = None, feedback: str | None = None
    ) -> RunStatus:
        """Answer an open interrupt of the run.

        Args:
            value: "accept" or "reject" for an approval or a decision with low confidence; else
                the resume value itself, such as `{"answers": {"size": "M"}}`.
            node: The id of the waiting node. Required if several nodes wait.
            feedback: The reason, with "accept" or "reject".

        Returns:
            The status of the run after the answer.

        Raises:
            HostError: No node waits, or several nodes wait and `node` is not given, or the host
                refused the answer.

        Example:
            >>> from wopr import Run
            >>> async def answer(run: Run[object]) -> None:
            ...     await run.answer("reject", node="review", feedback="too expensive")
            ...     await run.answer({"answers": {"size": "M"}}, node="ask")
        """
        wait = await self._open_interrupt(node)
        body = ResolveInterrupt(resume_value=_resume_value(value, feedback))
        taken = await self._client.resolve(self.id, wait.node_id, body, wait.interrupt_id)
        return taken.document.status

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
        """Annotate the run, or one of its nodes or events, with exactly one signal.

        Args:
            rating: One to five stars.
            label: A label.
            correction: The correct output.
            flag: Whether to flag the run for review.
            note: The reason.
            node: The id of the node that the annotation is about.
            event: The id of the event that the annotation is about.
            actor: The id of an agent that is the author. The API key needs the scope
                `annotations:actor`.

        Returns:
            The stored annotation.

        Raises:
            ValueError: There is not exactly one of `rating`, `label`, `correction` and `flag`.
            HostError: The host refused the annotation or did not respond.

        Example:
            >>> from wopr import Run
            >>> async def rate(run: Run[object]) -> None:
            ...     await run.annotate(rating=2, note="too long", node="draft")
        """
        body = ActingAnnotationCreate(
            signal=_signal(rating, label, correction, flag=flag),
            target=Anchor(node_id=_or_unset(node), event_id=_or_unset(event)),
            note=_or_unset(note),
            actor=UNSET if actor is None else Actor(principal_ref=actor),
        )
        return (await self._client.annotate(self.id, body)).document

    async def annotations(self) -> list[Annotation]:
        """Read the annotations of the run.

        Returns:
            The annotations, oldest first.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        return (await self._client.annotations(self.id)).document.annotations

    async def fork(
        self,
        *,
        after: int | None = None,
        inputs: JsonObject | None = None,
        configurable: JsonObject | None = None,
    ) -> Run[Out]:
        """Start a new run from a point of this run's history.

        The branch copies the log up to the event `after` and executes the rest again, including
        effects outside the host.

        Args:
            after: The sequence of the last event to copy. Without it, the branch starts from the
                beginning.
            inputs: Inputs to change. Only a branch from the beginning can change them.
            configurable: Members of `configurable` to change.

        Returns:
            The new run.

        Raises:
            HostError: The host refused the fork or did not respond.

        Example:
            >>> from wopr import Run
            >>> async def retry(run: Run[object]) -> object:
            ...     branch = await run.fork(after=4, configurable={"temperature": 0})
            ...     return await branch.result()
        """
        body = _branch(after, inputs, configurable)
        return await self._fork(body)

    async def preview_fork(
        self,
        *,
        after: int | None = None,
        inputs: JsonObject | None = None,
        configurable: JsonObject | None = None,
    ) -> ForkPreview:
        """Read what `fork` with the same arguments would execute, without executing it.

        Args:
            after: The sequence of the last event to copy.
            inputs: Inputs to change.
            configurable: Members of `configurable` to change.

        Returns:
            The nodes, effects and answers that would be kept or repeated.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        body = _branch(after, inputs, configurable)
        return (await self._client.preview_fork(self.id, body)).document

    async def replay(self) -> Run[Out]:
        """Start a new run that repeats this run from its recorded results, without effects.

        Returns:
            The new run.

        Raises:
            HostError: The host refused the replay or did not respond.

        Example:
            >>> from wopr import Run
            >>> async def is_repeatable(run: Run[object]) -> bool:
            ...     replay = await run.replay()
            ...     await replay.settled()
            ...     return (await run.diff(replay)).diverged_at_seq is None
        """
        return await self._fork(ForkRun(mode="replay"))

    async def diff(self, other: Run[Out] | str) -> RunDiff:
        """Compare the events and the final states of two runs.

        Args:
            other: The other run, or its id.

        Returns:
            The differences. `diverged_at_seq` is None if there are no differences.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        against = other if isinstance(other, str) else other.id
        return (await self._client.diff(self.id, against)).document

    async def cancel(self, reason: str | None = None) -> RunStatus:
        """Cancel the run.

        Args:
            reason: The reason, which is stored in the log.

        Returns:
            The status of the run.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        body = CancelRun(reason=_or_unset(reason))
        return (await self._client.cancel(self.id, body)).document.status

    async def pause(self, reason: str | None = None, *, immediate: bool = False) -> RunStatus:
        """Pause the run.

        Args:
            reason: The reason, which is stored in the log.
            immediate: Whether to interrupt the nodes that are executing. Otherwise they finish.

        Returns:
            The status of the run.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        policy: DrainPolicy = "immediate" if immediate else "drain-current-node"
        body = PauseRun(reason=_or_unset(reason), drain_policy=policy)
        return (await self._client.pause(self.id, body)).document.status

    async def resume(self, reason: str | None = None) -> RunStatus:
        """Resume a paused run.

        Args:
            reason: The reason, which is stored in the log.

        Returns:
            The status of the run.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        body = ResumeRun(reason=_or_unset(reason))
        return (await self._client.resume(self.id, body)).document.status

    async def view(self) -> RunView:
        """Read the run and its log as a table for a notebook or a terminal.

        Returns:
            The view.

        Raises:
            HostError: The host refused the call or did not respond.
        """
        return RunView(await self.snapshot(), await self.log())

    async def to_frame(self) -> Json:
        """Read the log as a pandas DataFrame, one row per event.

        Returns:
            The DataFrame.

        Raises:
            ModuleNotFoundError: pandas is not installed. The extra `pandas` installs it.
            HostError: The host refused the call or did not respond.
        """
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

    async def _open_interrupt(self, node: str | None) -> InboxItem:
        waits = await self.waits()
        found = [wait for wait in waits if node in (None, wait.node_id)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(wait.node_id for wait in waits)
        if not waits:
            message = f"run {self.id} does not wait for an answer"
        elif node is None:
            message = f"several nodes of run {self.id} wait for an answer: {names}; set node="
        else:
            message = f"node {node} of run {self.id} does not wait for an answer; waiting: {names}"
        raise HostError(message, code="interrupt_not_found")

    async def _fork(self, body: ForkRun) -> Run[Out]:
        accepted = await self._client.fork(self.id, body)
        return Run(self._client, accepted.document.run_id, self._kind)


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
        raise ValueError("set exactly one of rating, label, correction and flag")
    return signals[0]

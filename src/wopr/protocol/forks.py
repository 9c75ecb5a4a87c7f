"""Fork, replay and compare on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Id, JsonObject, NonEmpty, Unset
from wopr.protocol.runs import RunStatus, Tag

ForkMode = Literal["replay", "branch"]
Sequence = Annotated[int, msgspec.Meta(ge=0)]


class OptionsOverlay(Closed, frozen=True, kw_only=True):
    """What a branch changes of its source's options; inputs, if it begins at the start."""

    inputs: JsonObject = {}
    configurable: JsonObject = {}
    tags: Annotated[list[Tag], msgspec.Meta(max_length=100)] = []
    metadata: JsonObject = {}

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return not (self.inputs or self.configurable or self.tags or self.metadata)

    def over(self, other: OptionsOverlay) -> OptionsOverlay:
        """What both change together; where they differ, this one holds."""
        return OptionsOverlay(
            configurable=other.configurable | self.configurable,
            tags=self.tags or other.tags,
            metadata=other.metadata | self.metadata,
        )


class ForkRun(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/runs/{runId}:fork`."""

    mode: ForkMode
    from_seq: Sequence | Unset = UNSET
    run_options_overlay: OptionsOverlay = OptionsOverlay()


class ForkAccepted(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The 201 answer of a fork."""

    run_id: Id
    source_run_id: Id
    from_seq: int
    mode: ForkMode
    status: RunStatus
    events_url: str


class Shift(Document, frozen=True, kw_only=True):
    """Events below a sequence count as having come that much later."""

    before: int
    by_ms: int


class Fork(Document, frozen=True, kw_only=True):
    """Where a forked run comes from; kept with the run for good."""

    source_run_id: Id
    mode: ForkMode
    from_seq: int
    overlay: OptionsOverlay = OptionsOverlay()
    # For a replay: the run whose names its payloads repeat, which is the source's own origin.
    origin_run_id: Id | Unset = UNSET
    # The time between a branch's history and its own first event, which does not count.
    shifts: list[Shift] = []


class ForkPreview(Document, frozen=True, kw_only=True, omit_defaults=False):
    """What a fork would do, without doing it."""

    source_run_id: Id
    mode: ForkMode
    from_seq: int
    copied_events: int
    kept_nodes: list[str]
    # Nodes that the fork executes if it takes its source's path.
    rerun_nodes: list[str]
    # Nodes that it executes as well if a node ends differently or an open condition holds.
    possible_nodes: list[str] = []
    # The nodes among these whose outside effects a branch performs.
    effects_again: list[str]
    possible_effects: list[str] = []
    # Interrupt keys whose recorded answers are reused, and those that are asked again.
    answers_kept: list[str]
    answers_asked_again: list[str]


class EventDiff(Document, frozen=True, kw_only=True):
    """One place where two logs differ."""

    seq: int
    op: Literal["added", "removed", "changed"]
    a_event: JsonObject | Unset = UNSET
    b_event: JsonObject | Unset = UNSET


class RunDiff(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """How two runs differ: in their logs and in what they came to."""

    a: Id
    b: Id
    diverged_at_seq: int | None
    event_diffs: list[EventDiff]
    state_diff: JsonObject
    truncated: bool | Unset = UNSET


class AncestryParent(Closed, frozen=True, kw_only=True):
    """The run that started this one."""

    run_id: Id
    host_id: NonEmpty
    cause: Literal["mcp-tool-call", "a2a-message", "core.subWorkflow", "core.dispatch"]
    well_known_url: str | Unset = UNSET


class Ancestry(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """One step up the family of a run."""

    run_id: Id
    host_id: NonEmpty
    parent: AncestryParent | None

"""Fork, replay and compare on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Id, JsonObject, NonEmpty, Unset
from wopr.protocol.runs import RunStatus, Tag

ForkMode = Literal["replay", "branch"]
Sequence = Annotated[int, msgspec.Meta(ge=0)]


class OptionsOverlay(Closed, frozen=True, kw_only=True):
    """Changes to the source's options, and to its inputs if the branch starts at the beginning."""

    inputs: JsonObject = {}
    configurable: JsonObject = {}
    tags: Annotated[list[Tag], msgspec.Meta(max_length=100)] = []
    metadata: JsonObject = {}

    @property
    def is_empty(self) -> bool:
        """Return whether the overlay changes nothing."""
        return not (self.inputs or self.configurable or self.tags or self.metadata)

    def merge_over(self, other: OptionsOverlay) -> OptionsOverlay:
        """Return both overlays merged. This one takes precedence. The result has no inputs."""
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
    """The 201 response of a fork."""

    run_id: Id
    source_run_id: Id
    from_seq: int
    mode: ForkMode
    status: RunStatus
    events_url: str


class Shift(Document, frozen=True, kw_only=True):
    """The times of events below a sequence are shifted by this much."""

    before: int
    by_ms: int


class Fork(Document, frozen=True, kw_only=True):
    """The origin of a forked run."""

    source_run_id: Id
    mode: ForkMode
    from_seq: int
    overlay: OptionsOverlay = OptionsOverlay()
    # For a replay: the run id to use in payloads, which is that of the original source.
    origin_run_id: Id | Unset = UNSET
    # Limits and deadlines do not count the time between the copied events of a branch and its own
    # events. So the times of copied events are shifted by that time.
    shifts: list[Shift] = []


class ForkPreview(Document, frozen=True, kw_only=True, omit_defaults=False):
    """A preview of a fork."""

    source_run_id: Id
    mode: ForkMode
    from_seq: int
    copied_events: int
    kept_nodes: list[str]
    # Nodes that the fork executes if it takes its source's path.
    rerun_nodes: list[str]
    # Nodes that it executes as well if a node ends differently or an open condition holds.
    possible_nodes: list[str] = []
    # Nodes whose external effects a branch performs again: those of `rerun_nodes`, and those of
    # `possible_nodes`.
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
    """The differences of two runs: in their logs and in their results."""

    a: Id
    b: Id
    diverged_at_seq: int | None
    event_diffs: list[EventDiff]
    state_diff: JsonObject
    truncated: bool | Unset = UNSET


class AncestryParent(Closed, frozen=True, kw_only=True):
    """The run that started this run."""

    run_id: Id
    host_id: NonEmpty
    cause: Literal["mcp-tool-call", "a2a-message", "core.subWorkflow", "core.dispatch"]
    well_known_url: str | Unset = UNSET


class Ancestry(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """A run and its parent."""

    run_id: Id
    host_id: NonEmpty
    parent: AncestryParent | None

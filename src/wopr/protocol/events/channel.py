"""Payloads of output events: channel writes, variables, artifacts and streamed text."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.events.values import Count, Ordinal, Timestamp
from wopr.protocol.workflow import Reducer


class ChannelWritten(Closed, frozen=True, kw_only=True):
    """A write to a channel. `value` is the written value and not the channel's reduced value."""

    channel: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    value: Json
    reducer: Reducer
    written_at: Timestamp
    node_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | Unset = UNSET
    schema_version: Ordinal | Unset = UNSET
    source_engine_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | Unset = UNSET
    source_run_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | Unset = UNSET


class ArtifactCreated(Document, frozen=True, kw_only=True):
    """A node created an artifact."""

    artifact_id: NonEmpty
    artifact_type: NonEmpty
    node_id: str | Unset = UNSET
    version: str | Unset = UNSET
    summary: str | Unset = UNSET
    registered: bool | Unset = UNSET
    registration_source: Literal["pack", "host"] | Unset = UNSET


class ChunkUsage(Document, frozen=True, kw_only=True):
    """Token usage of a streamed response."""

    prompt_tokens: Count | Unset = UNSET
    completion_tokens: Count | Unset = UNSET
    total_tokens: Count | Unset = UNSET


class ChunkMeta(Closed, frozen=True, kw_only=True):
    """A provider's metadata of a chunk."""

    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | Unset = UNSET
    logprobs: list[Any] | Unset = UNSET
    tool_calls: list[Any] | Unset = UNSET
    model: str | Unset = UNSET
    usage: ChunkUsage | Unset = UNSET
    provider: str | Unset = UNSET
    provider_extensions: JsonObject | Unset = UNSET


class OutputChunk(Document, frozen=True, kw_only=True):
    """A piece of streamed text."""

    node_id: NonEmpty
    run_id: NonEmpty
    chunk: str
    is_last: bool
    channel: str | Unset = UNSET
    meta: ChunkMeta | Unset = UNSET


class VariableChanged(Document, frozen=True, kw_only=True):
    """A variable of the run changed. Without `next` it was deleted."""

    name: NonEmpty
    previous: Json | Unset = UNSET
    next: Json | Unset = UNSET
    node_id: str | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "channel.written": ChannelWritten,
    "artifact.created": ArtifactCreated,
    "output.chunk": OutputChunk,
    "variable.changed": VariableChanged,
}

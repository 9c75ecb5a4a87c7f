"""Shared agent contexts: the conversation that several nodes of one run have in common.

A node's `agentSharing` says which context it has: `isolated` is its own, `shared` is that of the
whole run, and `shared:<groupId>` is that of a group. A shared context is a channel of messages, so
that restarts, forks and replays fold it from the log.
"""

from __future__ import annotations

from typing import Final

from wopr.engine.expression_tokens import is_list
from wopr.engine.folding import read
from wopr.protocol.documents import Json, JsonObject

ISOLATED: Final = "isolated"
SHARED: Final = "shared"
# The channel of the run's context; that of a group ends in a colon and the group's id.
CHANNEL: Final = "agentContext"


def context_channel(config: JsonObject) -> str | None:
    """Name the channel of a node's shared context; None for a node with a context of its own."""
    sharing: str = read(config, "agentSharing", str, ISOLATED)
    return CHANNEL + sharing.removeprefix(SHARED) if sharing.startswith(SHARED) else None


def group_of(channel: str) -> str:
    """The id of the group whose context a channel holds; empty for the run's context."""
    return channel.removeprefix(CHANNEL).removeprefix(":")


def is_context(channel: str) -> bool:
    """Whether a channel of this name holds a shared context."""
    return channel == CHANNEL or channel.startswith(f"{CHANNEL}:")


def messages_in(channels: JsonObject, channel: str | None) -> list[Json]:
    """The messages of a context so far."""
    found: Json = channels.get(channel) if channel is not None else None
    return found if is_list(found) else []
